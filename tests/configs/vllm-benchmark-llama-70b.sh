vllm serve --model meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 4 --dtype bfloat16 --async-scheduling --no-enable-prefix-caching --max-num-batched-tokens 8192
