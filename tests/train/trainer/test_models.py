"""A model or tokenizer that does not fit the data is refused before step 1 (G9); models are built as the flags say."""

import json
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from huggingface_hub import constants

from tests.helpers.marked import write_marked
from tests.helpers.recorder import quiet_arguments, tiny_model
from tests.helpers.tokenizers import byte_tokenizer
from tokentar import Manifest, ShardTrainer
from tokentar.shard_writer.errors import SetError, SettingError
from tokentar.shard_writer.tokenizing.spec import fingerprint
from tokentar.train.trainer.arguments import ModelArguments
from tokentar.train.trainer.model_checks import check_model
from tokentar.train.trainer.models import build_model, find_tokenizer


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Four marked shards of ids below 300, eight a sequence."""
    return write_marked(tmp_path / "set", 4, 4, vocab_length=300)


def written_by(manifest: Manifest, tokenizer: Any, name: str) -> Manifest:
    """The same set, as if `tokenizer` had written it."""
    info = replace(
        manifest.info.tokenizer,
        name=name,
        fingerprint=fingerprint(tokenizer, tokenizer.eos_token_id),
        eos_token_id=tokenizer.eos_token_id,
    )
    return replace(manifest, info=replace(manifest.info, tokenizer=info))


def test_a_vocabulary_too_small_is_refused_with_the_largest_id(manifest: Manifest) -> None:
    check_model(manifest, tiny_model(300))
    message = r"train-000000\.tar .* tokenizer 'marked' \(300 tokens\), but the model embeds 259: max id 299 >= 259"
    with pytest.raises(SetError, match=message):
        check_model(manifest, tiny_model(259))


def test_positions_too_few_are_refused(manifest: Manifest) -> None:
    with pytest.raises(SetError, match="sequences of 8 tokens, but the model has 7 positions"):
        check_model(manifest, tiny_model(n_positions=7))


@pytest.mark.parametrize("sizes", [{"vocab_size": 299}, {"n_positions": 4}])
def test_a_trainer_is_not_built_with_a_model_that_does_not_fit(
    manifest: Manifest, tmp_path: Path, sizes: dict[str, int]
) -> None:
    with pytest.raises(SetError, match=r"max id 299 >= 299|8 tokens, but the model has 4 positions"):
        ShardTrainer(model=tiny_model(**sizes), args=quiet_arguments(tmp_path), shards=manifest)


def test_the_tokenizer_that_wrote_the_set_is_found(manifest: Manifest, tmp_path: Path, t0: Any) -> None:
    name = str(tmp_path / "t0")
    t0.save_pretrained(name)
    found = find_tokenizer(written_by(manifest, t0, name), None)
    assert found is not None
    assert found.get_vocab() == t0.get_vocab()


def test_another_tokenizer_than_the_one_that_wrote_is_refused(manifest: Manifest, tmp_path: Path, t0: Any) -> None:
    model = str(tmp_path / "model")
    byte_tokenizer(extra=1).save_pretrained(model)
    with pytest.raises(SetError, match=r"fingerprint \w+ \(260 tokens\), but .* was written with 'gone', fingerprint"):
        find_tokenizer(written_by(manifest, t0, "gone"), model)


def test_a_tokenizer_with_another_eos_still_fits(manifest: Manifest, tmp_path: Path, t0: Any) -> None:
    """The ids are what counts: pad_token = eos_token, as many set it, changes none."""
    tokenizer = byte_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(tmp_path / "model")
    assert find_tokenizer(written_by(manifest, t0, "gone"), str(tmp_path / "model")) is not None


def test_a_set_whose_tokenizer_is_not_at_hand_can_be_trained_on(manifest: Manifest, t0: Any, tmp_path: Path) -> None:
    assert find_tokenizer(written_by(manifest, t0, str(tmp_path / "gone")), None) is None


def test_a_hub_is_asked_once_whether_it_has_the_tokenizer_of_the_set(
    manifest: Manifest, t0: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And not a file at a time, again and again: a bare word in dataset.json may be a folder of another machine."""
    asked: list[str] = []

    class NotFound(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.extend([self.path] if "no-such-tokenizer" in self.path else [])
            self.send_error(404)

        do_HEAD = do_GET

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), NotFound) as hub, caplog.at_level("INFO", "tokentar"):
        Thread(target=hub.serve_forever, daemon=True).start()
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        assert find_tokenizer(written_by(manifest, t0, "no-such-tokenizer"), None) is None
        hub.shutdown()
    assert asked == ["/api/models/no-such-tokenizer"]
    assert "tokenizer 'no-such-tokenizer', which wrote the set, is neither here nor on the hub" in caplog.text


def test_a_new_model_gets_the_vocabulary_of_the_data(manifest: Manifest, tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 8}
    file = tmp_path / "model.yaml"
    file.write_text(json.dumps(config))
    for given in (json.dumps(config), str(file)):
        model = build_model(ModelArguments(model_config=given), manifest.info)
        assert model.config.vocab_size == 300
        assert model.config.eos_token_id == manifest.info.tokenizer.eos_token_id
        check_model(manifest, model)


def test_a_saved_model_is_loaded(manifest: Manifest, tmp_path: Path) -> None:
    tiny_model(310).save_pretrained(tmp_path / "model")
    model = build_model(ModelArguments(model_name_or_path=str(tmp_path / "model")), manifest.info)
    assert model.get_input_embeddings().num_embeddings == 310


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_model_names_its_loss(manifest: Manifest, tmp_path: Path, kind: str) -> None:
    """Else transformers says with the first step that it does not know it."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 8}
    config = json.dumps({"model_type": kind} | sizes)
    new = build_model(ModelArguments(model_config=config), manifest.info)
    new.save_pretrained(tmp_path / "model")
    saved = build_model(ModelArguments(model_name_or_path=str(tmp_path / "model")), manifest.info)
    assert new.loss_type == saved.loss_type == "ForCausalLM"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"model_type": "gpt2", "n_layers": 1}', "model_config: gpt2 knows no n_layers; its keys are"),
        ('{"n_layer": 1}', "model_type is None, needed: a causal language model of transformers, such as"),
        ('{"model_type": "t6"}', "model_type is 't6', needed"),
        ('{"model_type": ', "model_config: neither JSON nor YAML"),
        ("nowhere.json", "model_config: nowhere.json: No such file or directory; give a file, or JSON"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_none_is_told(manifest: Manifest, config: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        build_model(ModelArguments(model_config=config), manifest.info)


def test_a_model_that_sees_what_it_is_to_predict_is_refused(manifest: Manifest, tmp_path: Path) -> None:
    def build(config: dict[str, Any]) -> Any:
        return build_model(ModelArguments(model_config=json.dumps(config)), manifest.info)

    sizes = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 16}
    config = {"model_type": "bert", "max_position_embeddings": 8} | sizes
    with pytest.raises(
        SettingError, match=r"BertLMHeadModel sees the tokens that it is to predict, .* a causal language model"
    ):
        ShardTrainer(build(config), quiet_arguments(tmp_path), shards=manifest)
    ShardTrainer(build(config | {"is_decoder": True}), quiet_arguments(tmp_path), shards=manifest)


@pytest.mark.parametrize("content", ["- gpt2\n", "gpt2\n"])
def test_a_file_without_a_mapping_is_no_configuration(manifest: Manifest, tmp_path: Path, content: str) -> None:
    file = tmp_path / "model.yaml"
    file.write_text(content)
    with pytest.raises(SettingError, match=r"model_config: a mapping wanted, found (list|str)"):
        build_model(ModelArguments(model_config=str(file)), manifest.info)


def test_a_model_that_is_not_there_is_told(manifest: Manifest, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SettingError, match=r"model_name_or_path: .*empty' cannot be loaded"):
        build_model(ModelArguments(model_name_or_path=str(tmp_path / "empty")), manifest.info)


@pytest.mark.parametrize("names", [{}, {"model_name_or_path": "a", "model_config": "{}"}])
def test_exactly_one_model_is_asked_for(names: dict[str, str]) -> None:
    with pytest.raises(SettingError, match=r"give one of --model_name_or_path .* and --model_config"):
        ModelArguments(**names)
