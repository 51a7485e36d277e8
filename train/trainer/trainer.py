"""ShardTrainer: transformers.Trainer on sets of shards, which accelerate never touches.

    trainer = ShardTrainer(model=model, args=training_args, shards="out/", validation_shards="out/")
    trainer.train(resume_from_checkpoint=True)

Everything else, DDP, FSDP, bf16, accumulation, schedules, logging, is Trainer's own, set by its own arguments. Another Trainer
class is used in the same way:

    class MyTrainer(ShardTrainerMixin, trl.SFTTrainer): ...
"""

from transformers import Trainer

from tokentar.train.trainer.mixin import ShardTrainerMixin


class ShardTrainer(ShardTrainerMixin, Trainer):
    """A Trainer whose training and validation data are sets of shards; ShardTrainerMixin says what it takes."""
