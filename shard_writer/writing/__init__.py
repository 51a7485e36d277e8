"""From documents to a finished set: plan, tokenize into the spool, assign tokens to shards, write shards, publish (G1, G2, G3)."""
