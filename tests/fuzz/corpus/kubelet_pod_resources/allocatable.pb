
$
nvidia.com/gpuGPU-5b1cGPU-77aa