
>
run-1-0team-
train$
nvidia.com/gpuGPU-5b1cGPU-77aa