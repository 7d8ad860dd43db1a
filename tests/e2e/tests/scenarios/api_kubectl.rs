//! What `kubectl` shows of our objects: short names, category, columns, selectable fields, explanations.

use andreas_e2e::api::{create, delete, merge, patch_status, yaml};
use andreas_e2e::rules;
use andreas_testbed::Testbed;
use anyhow::{Result, ensure};
use serde_json::Value;

/// Jobs in four states, as name, spec and status.
const JOBS: [(&str, &str, &str); 4] = [
    (
        "waits",
        "{weight: 50, deadline: '2999-01-01T00:00:00Z'}",
        "{phase: Pending, reason: WaitingForCapacity, deadline: '2999-01-01T00:00:00Z', display: {onTime: 31%}, \
         profile: {name: train-0a1b2c3d4e, source: Program}, \
         prediction: {startTime: '2998-12-30T00:00:00Z', finishTime: '2999-01-02T00:00:00Z', risk: High, source: Prior, \
           onTimePercent: 31}, \
         conditions: [{type: Scheduled, status: 'False', reason: WaitingForCapacity, message: 'behind 3 jobs', \
           lastTransitionTime: '2026-11-21T08:00:00Z'}]}",
    ),
    (
        "runs",
        "{profileRef: {name: bert}, deadline: '2999-01-01T00:00:00Z'}",
        "{phase: Running, attempts: 1, deadline: '2999-01-01T00:00:00Z', \
         display: {progress: 42%, nodes: 'n1, n2', onTime: 97%}, \
         allocation: {attempt: 1, generation: 1, gpuType: NVIDIA-A100-SXM4-80GB, gpus: 8, gpusPerWorker: 4, nodes: [n1, n2], \
           since: '2026-11-21T08:00:00Z'}, \
         progress: {milliPercent: 42000, attempt: 1, at: '2026-11-21T08:00:00Z'}, \
         prediction: {finishTime: '2998-12-31T00:00:00Z', risk: Low, source: UserGiven, onTimePercent: 97}}",
    ),
    (
        "done",
        "{deadline: '2999-01-01T00:00:00Z'}",
        "{phase: Succeeded, attempts: 1, deadline: '2999-01-01T00:00:00Z', \
         display: {progress: 100%, onTime: Met, energy: 1.74 kWh, energyCost: 0.45 EUR, latenessCost: 0.10 EUR, duration: 2h5m}, \
         progress: {milliPercent: 100000, attempt: 1, at: '2026-11-21T10:05:00Z'}, \
         startTime: '2026-11-21T08:00:00Z', completionTime: '2026-11-21T10:05:00Z', \
         consumption: {joules: 4464000, hostJoules: 1800000, source: Measured, currency: EUR, energyCostMicros: 322400, \
           hostCostMicros: 130000, latenessCostMicros: 100000}, \
         conditions: [{type: Complete, status: 'True', reason: Completed, message: all workers exited 0, \
           lastTransitionTime: '2026-11-21T10:05:00Z'}]}",
    ),
    (
        "gave-up",
        "{retries: 0}",
        "{phase: Failed, attempts: 1, userFailures: 1, reason: RetriesExhausted, display: {duration: 4m}, \
         conditions: [{type: Failed, status: 'True', reason: RetriesExhausted, \
           message: 'worker 0 exited with 1: boom (all 0 retries are used)', lastTransitionTime: '2026-11-21T08:04:00Z'}]}",
    ),
];

fn job(name: &str, spec: &str) -> Result<Value> {
    let mut object = rules::smallest("TrainingJob")?;
    merge(&mut object, &yaml(&format!("{{metadata: {{name: {name}}}, spec: {spec}}}"))?);
    Ok(object)
}

/// The text without what differs from run to run: ages, times of creation, versions, UIDs.
fn steady(text: &str) -> String {
    let changing = ["Creation Timestamp:", "Resource Version:", "UID:"];
    let line = |line: &str| {
        let field = changing.into_iter().find(|field| line.trim_start().starts_with(field));
        let shown = field.map_or_else(|| line.to_owned(), |field| format!("  {field} ..."));
        // The age is some seconds: padded, or the last column.
        let words = shown.split(' ').map(|word| match word.strip_suffix('s') {
            Some(number) if !number.is_empty() && number.parse::<u32>().is_ok() => "0s",
            _ => word,
        });
        words.collect::<Vec<_>>().join(" ").trim_end().to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

async fn kubectl(bed: &Testbed, line: &str) -> Result<String> {
    Ok(bed.kubectl(line.split_whitespace()).await?.checked()?.stdout)
}

/// Columns of a GpuNode whose agent has written its status.
pub async fn nodes_read_well(bed: &Testbed, name: &str) -> Result<()> {
    insta::assert_snapshot!("kubectl_get_nodes", steady(&kubectl(bed, &format!("get gn {name}")).await?));
    let wide = kubectl(bed, &format!("get gn {name} -o wide")).await?;
    insta::assert_snapshot!("kubectl_get_nodes_wide", steady(&wide));
    Ok(())
}

/// Short names, category, columns, selectable fields, explanations.
pub async fn reads_well(bed: &Testbed) -> Result<()> {
    let client = bed.client();
    for (name, spec, status) in JOBS {
        let job = job(name, spec)?;
        create(&client, &job, false).await?.accepted()?;
        patch_status(&client, &job, &yaml(&format!("status: {status}"))?).await?.accepted()?;
    }
    insta::assert_snapshot!("kubectl_get", steady(&kubectl(bed, "get tj").await?));
    insta::assert_snapshot!("kubectl_get_wide", steady(&kubectl(bed, "get tj -o wide").await?));
    insta::assert_snapshot!("kubectl_describe", steady(&kubectl(bed, "describe tj waits done").await?));
    insta::assert_snapshot!("kubectl_explain", kubectl(bed, "explain tj.spec").await?);

    for (selector, name) in [
        ("spec.profileRef.name=bert", "runs"),
        ("status.phase=Running", "runs"),
        ("status.reason=WaitingForCapacity", "waits"),
        ("spec.suspend=false", "done"),
    ] {
        let found = kubectl(bed, &format!("get tj --field-selector {selector} -o name")).await?;
        ensure!(found.contains(name), "{selector}: {found}");
    }
    let other = kubectl(bed, "get tj --field-selector status.phase=Stopping -o name").await?;
    ensure!(other.is_empty(), "{other}");
    for name in ["tj", "tp", "ep", "epol", "gn", "andreas"] {
        kubectl(bed, &format!("get {name}")).await?;
    }
    // Scripts wait as for a Job of Kubernetes.
    kubectl(bed, "wait --for=condition=Complete --timeout=20s tj/done").await?;
    kubectl(bed, "wait --for=condition=Failed --timeout=20s tj/gave-up").await?;
    for (name, spec, _) in JOBS {
        delete(&client, &job(name, spec)?).await?;
    }
    Ok(())
}
