//! `kubectl-andreas wait`: until jobs have ended.

use std::time::Duration;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{DurationText, Phase};
use anyhow::Result;
use clap::Args;

use crate::cluster::{Cluster, ConnectArgs, block_on};
use crate::exit::NotGood;
use crate::output::plain;
use crate::when;

/// Between two looks at a job.
const AGAIN: Duration = Duration::from_secs(1);

/// Wait: until jobs have ended, with a line for each change of phase.
///
/// Exits with 0 when all have succeeded, with 5 when one has failed or the time is over. Needs the right to get TrainingJobs.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Names of TrainingJobs
    #[arg(value_name = "JOB", required = true)]
    jobs: Vec<String>,
    /// Longest wait, for example 10m; as long as it takes without
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    timeout: Option<DurationText>,
    /// Their namespace; that of the context without
    #[arg(long, short, value_name = "NAME", help_heading = "Cluster")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ConnectArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When a job fails or does not exist, the time is over, or a right is missing.
pub fn run(args: &WaitArgs) -> Result<()> {
    block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref());
        let all = all(&cluster, &namespace, &args.jobs, |line| println!("{line}"));
        match args.timeout.as_ref().and_then(|limit| Some((limit, limit.seconds()?.try_into().ok()?))) {
            None => all.await,
            Some((limit, seconds)) => match tokio::time::timeout(Duration::from_secs(seconds), all).await {
                Ok(ended) => ended,
                Err(_) => Err(NotGood(format!("not ended within {limit}")).into()),
            },
        }
    })
}

/// Returns when all have ended; the others are waited for where one has failed.
async fn all(cluster: &Cluster, namespace: &str, jobs: &[String], mut say: impl FnMut(String)) -> Result<()> {
    let mut failed = Vec::new();
    for name in jobs {
        let mut last = None;
        loop {
            let job: SlimTrainingJob = cluster.get(Some(namespace), name).await?;
            let status = job.status.unwrap_or_default();
            if last != Some(status.phase) {
                last = Some(status.phase);
                let why = status.history.last().filter(|_| status.phase.is_terminal());
                let why = why.map_or(String::new(), |attempt| format!(": {}", plain(&attempt.message)));
                say(format!("trainingjob/{} {}{why}", plain(name), status.phase.as_str()));
            }
            if status.phase.is_terminal() {
                failed.extend((status.phase == Phase::Failed).then_some(name.as_str()));
                break;
            }
            tokio::time::sleep(AGAIN).await;
        }
    }
    if failed.is_empty() { Ok(()) } else { Err(NotGood(format!("failed: {}", failed.join(", "))).into()) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::{cluster, refusal};
    use crate::exit;

    /// What is said of jobs that pass through these phases, one at each look, and the exit code.
    fn waited(phases: &'static [&'static str]) -> (Vec<String>, u8) {
        let looks = std::sync::Arc::new(AtomicUsize::new(0));
        let answer = move |_: &str, _: Value| {
            let Some(phase) = phases.get(looks.fetch_add(1, Ordering::Relaxed).min(phases.len() - 1)) else {
                return refusal(404, "NotFound", "not found", "bert");
            };
            let job = json!({
                "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": "bert"},
                "spec": {"epochs": 1, "gpus": {"min": 1}, "template": {"spec": {"containers": []}}},
                "status": {"phase": phase},
            });
            (200, job)
        };
        let mut said = Vec::new();
        let done = block_on(async {
            Ok(all(&cluster(answer), "team-a", &["bert".to_owned()], |line| said.push(line)).await)
        });
        let code = done.unwrap().map_or_else(|error| exit::code(&error), |()| 0);
        (said, code)
    }

    #[test]
    fn each_phase_is_said_once_and_the_end_is_the_exit_code() {
        let (said, code) = waited(&["Running", "Running", "Succeeded"]);
        assert_eq!(said, ["trainingjob/bert Running", "trainingjob/bert Succeeded"]);
        assert_eq!(code, 0);
        assert_eq!(waited(&["Failed"]).1, exit::NOT_GOOD);
    }
}
