//! Starts the pretend kubelets of a cluster, as its options say.

use andreas_testbed::{Kubelets, Testbed, workspace_binary};
use anyhow::Result;
use serde_json::{Value, json};

use super::{Clock, Operator, Options, PROGRESS_ADDRESS, PROGRESS_HOST};
use crate::{install, wrong_clock};

/// Longer than any run.
const NEVER_SECONDS: u64 = 7 * 24 * 3600;

/// Writes their configuration and starts them; training programs report to the first operator.
pub(super) async fn start_kubelets(
    testbed: &Testbed,
    options: &Options,
    operators: &[Operator],
) -> Result<()> {
    let installed = options.install.is_some();
    let mut nodes: Vec<Value> = Vec::new();
    for g in &options.groups {
        let mut group = json!({
            "namePrefix": g.prefix, "count": g.count, "gpu": g.gpu, "gpus": g.gpus, "gpuMemoryMiB": g.memory_mib,
            "gpusKeptBusy": options.gpus_kept_busy,
        });
        if installed {
            group["taints"] = json!(["nvidia.com/gpu=present:NoSchedule"]);
        }
        if options.older.is_some() {
            // It takes `single`, which the GPU operator writes on every node, for MIG in use.
            group["labels"] = json!({"nvidia.com/mig.strategy": "none"});
        }
        nodes.push(group);
    }
    let recorded = options.recorded.iter();
    nodes.extend(recorded.map(|set| json!({"namePrefix": format!("{set}-"), "count": 1, "recorded": set})));
    let mut images =
        vec![json!({"image": "andreas.dev/trainer", "program": workspace_binary("andreas-trainer")?})];
    let mut config = json!({
        // A node that is alive must be heard several times before it counts as silent.
        "leaseRenewSeconds": (options.node_monitor_grace_period.as_secs() / 5).clamp(1, 10),
    });
    if options.simulated {
        config["containers"] = json!("simulated");
        config["leaseRenewSeconds"] = json!(NEVER_SECONDS);
    }
    if installed {
        nodes.push(json!({"namePrefix": "system-", "count": 2, "cpu": "8", "memory": "32Gi"}));
    }
    let mut host_paths = options.host_paths.clone();
    if installed || options.agents {
        if let Some(older) = &options.older {
            images.extend(older.images());
            host_paths.push(older.programs());
        }
        images.extend(install::images(testbed)?);
        config["nvmlLibrary"] = json!(install::nvml_library()?);
    }
    let forwards = operators.iter().take(1).map(|operator| {
        json!({"listen": PROGRESS_ADDRESS, "to": operator.progress.to_string(), "names": [PROGRESS_HOST]})
    });
    config["forwards"] = forwards.collect();
    config["hostPaths"] = json!(host_paths);
    config["nodes"] = json!(nodes);
    config["images"] = json!(images);
    let path = testbed.data_dir().join("nodes.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&config)?)?;
    let program = workspace_binary("pretend-kubelets")?;
    let clock = if options.clocks_can_be_set {
        wrong_clock::settable(&Clock::Kubelets.file(testbed))?
    } else {
        Vec::new()
    };
    let program = wrong_clock::wrapped(program, &clock, testbed.data_dir())?;
    let kubelets = Kubelets { program, args: vec!["--config".into(), path.into()] };
    Ok(testbed.start_kubelets(&kubelets).await?)
}
