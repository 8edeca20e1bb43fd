out_dir = 'out-letters'
eval_interval = 10
max_iters = 20
