//! Batch scripts of Slurm as they are, with the test trainer as their program.

use andreas_api::phase::Phase;
use andreas_e2e::cluster::{Cluster, Options};
use andreas_e2e::job::{Job, job};
use andreas_e2e::scenario::scenario;
use anyhow::{Context as _, Result, ensure};
use serde_json::json;

/// A job of eight GPUs, where nodes have four, that runs this script.
fn script(name: &str, text: &str) -> Job {
    let gang = job(name).gpus(8, 2).epochs(6, 0.4);
    gang.spec("rendezvous", json!("Slurm")).container("command", json!(["/bin/bash", "-c", text]))
}

const TORCHRUN: &str = r#"#!/bin/bash
#SBATCH --job-name=multinode
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
set -euo pipefail
module load cuda
nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head_node_ip=$(srun --nodes=1 --ntasks=1 -w "${nodes[0]}" hostname)
echo "of ${#nodes[@]} nodes, first $head_node_ip, $MASTER_ADDR:$MASTER_PORT"
srun --ntasks-per-node=1 andreas-trainer
"#;

const TASKS: &str = r#"#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
export MASTER_ADDR=$(hostname)
srun --label --gpus-per-task=1 bash -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS, GPU $CUDA_VISIBLE_DEVICES, first $MASTER_ADDR"'
srun --ntasks-per-node=1 andreas-trainer
srun -n1 bash -c 'exit 0'
"#;

/// What a worker has printed. Pretend kubelets serve no logs.
fn log_of(c: &Cluster, pod: &str) -> Result<String> {
    let file = c.testbed.data_dir().join("kubelets/logs/default").join(pod).join("train.log");
    std::fs::read_to_string(&file).with_context(|| file.display().to_string())
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_scripts_run_as_they_are_with_tasks_and_ranks_of_slurm() -> Result<()> {
    scenario(Options::default(), async |c| {
        for (name, text) in [("multinode", TORCHRUN), ("tasks", TASKS)] {
            let tj = script(name, text);
            c.submit(&tj).await?;
            c.wait_for_phase(&tj, Phase::Succeeded).await?;
        }
        for (index, ranks) in [(0, 0..4), (1, 4..8)] {
            let log = log_of(c, &format!("multinode-1-{index}"))?;
            ensure!(log.contains("of 2 nodes, first multinode-1-0.multinode-gang-"), "{log}");
            let log = log_of(c, &format!("tasks-1-{index}"))?;
            for rank in ranks {
                let line = format!("{rank}: rank {rank} of 8, GPU {}, first tasks-1-0.tasks-gang-", rank % 4);
                ensure!(log.contains(&line), "{line}: {log}");
            }
        }
        Ok(())
    })
    .await
}
