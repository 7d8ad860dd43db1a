//! Questions through the API server's proxy by an account with `edit` in the namespace: from the start of the command to its end.

use std::time::Instant;

use andreas_e2e::cluster::Cluster;
use andreas_e2e::questions::{ask, service};
use anyhow::{Result, ensure};
use serde_json::{Value, json};

use super::report::Report;
use super::trace::NAMESPACE;

/// Account that asks.
const ACCOUNT: &str = "asks";

/// A question, and how long its answers took.
pub(super) struct Asked {
    /// The words after `kubectl andreas`.
    pub question: String,
    /// Seconds of each answer, ascending.
    seconds: Vec<f64>,
}

impl Asked {
    /// The answer time that so large a part of the answers did not exceed, s; 0 without answers.
    pub fn quantile(&self, part: f64) -> f64 {
        let rank = (part * self.seconds.len() as f64).ceil() as usize;
        self.seconds.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    /// For the report's figures.
    pub fn figures(&self) -> Value {
        json!({"question": self.question, "seconds": self.seconds})
    }
}

/// Asks each question so often, one after the other. `waiting`: a job that waits; `manifest`: a job that is not there yet.
pub(super) async fn measure(
    cluster: &Cluster,
    waiting: &str,
    manifest: &Value,
    times: usize,
) -> Result<Vec<Asked>> {
    let forward = service(cluster).await?;
    cluster.kubectl(&format!("create serviceaccount {ACCOUNT} -n {NAMESPACE}")).await?;
    let account = format!("--clusterrole=edit --serviceaccount={NAMESPACE}:{ACCOUNT}");
    cluster.kubectl(&format!("create rolebinding {ACCOUNT} -n {NAMESPACE} {account}")).await?;
    let kubeconfig = cluster.testbed.kubeconfig_for_service_account(NAMESPACE, ACCOUNT).await?;
    let file = kubeconfig.with_file_name("asked.json");
    std::fs::write(&file, manifest.to_string())?;
    let file = file.to_string_lossy().into_owned();
    let questions: [&[&str]; 5] = [
        &["queue"],
        &["explain", waiting],
        &["explain", waiting, "--changes"],
        &["whatif", "--nodes", "+1xA100x8"],
        &["whatif", "-f", &file],
    ];
    let mut all = Vec::new();
    for question in questions {
        let mut seconds = Vec::with_capacity(times);
        for _ in 0..times {
            let began = Instant::now();
            let (code, _, err) = ask(&kubeconfig, &[question, &["-n", NAMESPACE]].concat()).await?;
            ensure!(code == 0, "{question:?} ends with {code}: {err}");
            seconds.push(began.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        all.push(Asked { question: question.join(" ").replace(&file, "JOB.json"), seconds });
    }
    forward.abort();
    Ok(all)
}

/// The table. `command`: what makes it again; `jobs`: those in the cluster.
pub(super) fn report(command: &str, jobs: usize, asked: &[Asked]) -> Report {
    let columns = ["question", "jobs", "times", "median s", "95 % s", "most s"];
    let mut report = Report::new("ask", command.to_owned(), &columns);
    for asked in asked {
        let quantile = |part| format!("{:.2}", asked.quantile(part));
        let (question, times) = (format!("`{}`", asked.question), asked.seconds.len().to_string());
        report.rows.push(vec![
            question,
            jobs.to_string(),
            times,
            quantile(0.5),
            quantile(0.95),
            quantile(1.0),
        ]);
    }
    report.notes = vec![
        "From the start of `kubectl andreas` to its end, through the API server's proxy, by an account with `edit` in the one \
         namespace that has all jobs. One question at a time, while the operator is at rest. Where the operator said that it \
         had no time now, asking again is in the figure."
            .into(),
    ];
    report.figures = asked.iter().map(Asked::figures).collect();
    report
}
