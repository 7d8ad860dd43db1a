//! `kubectl-andreas wait`: until jobs have ended.

use std::time::Duration;

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{DurationText, Phase};
use anyhow::Result;
use clap::Args;

use crate::cluster::{Cluster, ClusterError, ConnectArgs, block_on};
use crate::exit::NotGood;
use crate::name;
use crate::output::{self, plain};
use crate::when;

/// Time between two rounds of reads.
const AGAIN: Duration = Duration::from_secs(1);

/// Wait: until jobs have ended, with a line for each change of phase.
///
/// Exits with 0 when all have succeeded, with 5 when one has failed or the time is over. An API server that does not answer is asked
/// again until the time is over. Needs the right to get TrainingJobs.
#[derive(Debug, Args)]
pub struct WaitArgs {
    /// Names of TrainingJobs
    #[arg(value_name = "JOB", required = true, value_parser = name::job)]
    jobs: Vec<String>,
    /// Longest wait, for example 10m; as long as it takes without
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    timeout: Option<DurationText>,
    /// Their namespace; that of the context without
    #[arg(long, short, value_name = "NAME", help_heading = "Cluster", value_parser = name::namespace)]
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
        let mut console = Console { open: args.jobs.clone() };
        let all = wait_for_all(&cluster, &namespace, &args.jobs, &mut console);
        match args.timeout.as_ref().and_then(|limit| Some((limit, limit.seconds()?.try_into().ok()?))) {
            None => all.await,
            Some((limit, seconds)) => match tokio::time::timeout(Duration::from_secs(seconds), all).await {
                Ok(ended) => ended,
                Err(_) => {
                    Err(NotGood(format!("not ended within {limit}: {}", console.open.join(", "))).into())
                }
            },
        }
    })
}

/// Where the lines go.
trait Listener {
    /// A change of a job.
    ///
    /// # Errors
    /// When nobody reads them any more.
    fn progress(&mut self, line: String) -> Result<()>;
    /// The API server cannot be read at present.
    fn warn(&mut self, line: String);
    /// These have not ended.
    fn open(&mut self, names: Vec<String>);
}

/// Standard output and standard error.
struct Console {
    open: Vec<String>,
}

impl Listener for Console {
    fn progress(&mut self, line: String) -> Result<()> {
        output::print(&(line + "\n"))
    }

    fn warn(&mut self, line: String) {
        output::print_error(&format!("warning: {line}"));
    }

    fn open(&mut self, names: Vec<String>) {
        self.open = names;
    }
}

/// Waits until all jobs have ended, also after one has failed. Each round reads every job that has not ended: one that
/// ends early may be deleted while others run. A read that fails for a while is tried again.
async fn wait_for_all(
    cluster: &Cluster,
    namespace: &str,
    jobs: &[String],
    to: &mut impl Listener,
) -> Result<()> {
    let mut open: Vec<(&str, Option<Phase>)> = jobs.iter().map(|name| (name.as_str(), None)).collect();
    let (mut failed, mut warned) = (Vec::new(), false);
    loop {
        let (mut still, mut failure) = (Vec::new(), None);
        for (name, last) in open {
            // Each further job would wait for the same API server.
            if matches!(failure, Some(ClusterError::Unreachable { .. })) {
                still.push((name, last));
                continue;
            }
            let job: SlimTrainingJob = match cluster.get(Some(namespace), name).await {
                Ok(job) => job,
                Err(error) if error.is_transient() => {
                    failure = Some(error);
                    still.push((name, last));
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            let status = job.status.unwrap_or_default();
            if last != Some(status.phase) {
                let why = status.history.last().filter(|_| status.phase.is_terminal());
                let why = why.map_or(String::new(), |attempt| format!(": {}", plain(&attempt.message)));
                to.progress(format!("trainingjob/{} {}{why}", plain(name), status.phase.as_str()))?;
            }
            if status.phase.is_terminal() {
                failed.extend((status.phase == Phase::Failed).then_some(name));
            } else {
                still.push((name, Some(status.phase)));
            }
        }
        if let Some(error) = failure.as_ref().filter(|_| !warned) {
            to.warn(format!("{}; trying again", plain(&error.to_string())));
        }
        warned = failure.is_some();
        if still.is_empty() {
            break;
        }
        to.open(still.iter().map(|(name, _)| (*name).to_owned()).collect());
        open = still;
        tokio::time::sleep(AGAIN).await;
    }
    if failed.is_empty() { Ok(()) } else { Err(NotGood(format!("failed: {}", failed.join(", "))).into()) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing::{cluster, refusal};
    use crate::exit;

    /// What is said and warned of.
    #[derive(Default)]
    struct Recorded(Vec<String>, Vec<String>);

    impl Listener for Recorded {
        fn progress(&mut self, line: String) -> Result<()> {
            self.0.push(line);
            Ok(())
        }

        fn warn(&mut self, line: String) {
            self.1.push(line);
        }

        fn open(&mut self, _: Vec<String>) {}
    }

    /// What is said of jobs that give these answers, one at each read, and the exit code. Phases are answers; so are `gone` and `away`.
    fn waited(jobs: &[(&str, &[&'static str])]) -> (Recorded, u8) {
        let answers: BTreeMap<String, Vec<&'static str>> =
            jobs.iter().map(|(name, answers)| ((*name).to_owned(), answers.to_vec())).collect();
        let answers = Arc::new(Mutex::new(answers));
        let answer = move |line: &str, _: Value| {
            let name = line.split(['/', '?']).nth(7).unwrap_or_default();
            let mut answers = answers.lock().unwrap();
            let Some(left) = answers.get_mut(name) else {
                return refusal(404, "NotFound", "not found", name);
            };
            let next = if left.len() > 1 { left.remove(0) } else { left[0] };
            match next {
                "gone" => refusal(404, "NotFound", "not found", name),
                "away" => refusal(503, "ServiceUnavailable", "the API server is shutting down", ""),
                phase => (
                    200,
                    json!({
                        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingJob", "metadata": {"name": name},
                        "spec": {"epochs": 1, "gpus": {"min": 1}, "template": {"spec": {"containers": []}}},
                        "status": {"phase": phase},
                    }),
                ),
            }
        };
        let mut recorded = Recorded::default();
        let names: Vec<String> = jobs.iter().map(|(name, _)| (*name).to_owned()).collect();
        let done =
            block_on(async { Ok(wait_for_all(&cluster(answer), "team-a", &names, &mut recorded).await) });
        let code = done.unwrap().map_or_else(|error| exit::code(&error), |()| 0);
        (recorded, code)
    }

    #[test]
    fn each_phase_is_said_once_and_the_end_is_the_exit_code() {
        let (recorded, code) = waited(&[("bert", &["Running", "Running", "Succeeded"])]);
        assert_eq!(recorded.0, ["trainingjob/bert Running", "trainingjob/bert Succeeded"]);
        assert_eq!((code, recorded.1.len()), (0, 0));
        assert_eq!(waited(&[("bert", &["Failed"])]).1, exit::NOT_GOOD);
        assert_eq!(waited(&[("bert", &["gone"])]).1, exit::NOT_FOUND);
    }

    #[test]
    fn a_failed_read_is_warned_of_once_and_tried_again() {
        let (recorded, code) = waited(&[("bert", &["Running", "away", "away", "Succeeded"])]);
        assert_eq!(recorded.0, ["trainingjob/bert Running", "trainingjob/bert Succeeded"]);
        assert_eq!(recorded.1, ["the API server is shutting down; trying again"]);
        assert_eq!(code, 0);
    }

    #[test]
    fn a_job_that_ended_and_was_deleted_while_another_ran_has_ended() {
        let (recorded, code) =
            waited(&[("a", &["Running", "Running", "Succeeded"]), ("b", &["Succeeded", "gone"])]);
        let said = ["trainingjob/a Running", "trainingjob/b Succeeded", "trainingjob/a Succeeded"];
        assert_eq!((recorded.0, code), (said.map(str::to_owned).to_vec(), 0));
    }
}
