"""Fine-tuning an adapter on your own file: what `course finetune` does around the trainer.

`run.finetune` is the whole run; `data_file`, `examples` and `split` prepare the data, `report` and
`next_steps` say what came out and how to use it.
"""
