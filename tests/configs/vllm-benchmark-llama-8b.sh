vllm serve --model meta-llama/Llama-3.1-8B-Instruct --tensor-parallel-size 1 --dtype bfloat16
