#!/bin/bash
#SBATCH --job-name=resnet -N 2-4 --gres=gpu:a100:8
#SBATCH -t 1-00:30:00 --mem-per-gpu=64G -c 8 --ntasks-per-node=8
#SBATCH --signal=B:TERM@120 --array=1-5 --mail-type=END

module load cuda
export SEED=1 DATA="/a b"
srun --container-image=nvcr.io#nvidia/pytorch:24.01 torchrun --nnodes=2 \
  --nproc_per_node 8 train.py --lr 0.1
