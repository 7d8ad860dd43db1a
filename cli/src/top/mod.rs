//! `kubectl-andreas top`: a live screen of jobs, GPUs, and power against the budget.
//!
//! **Flows**: lists of the API server in, every few seconds; lines out ([`frame`], without I/O), drawn over the last ones.

mod frame;

use std::io::IsTerminal as _;
use std::time::Duration;

use andreas_api::slim::SlimTrainingJob;
use andreas_runtime::clock;
use anyhow::Result;
use clap::Args;
use console::{Term, truncate_str};

use self::frame::Frame;
use crate::budget::Budget;
use crate::cluster::{Cluster, ClusterError, ConnectArgs, Namespaces, Scope, Selection, block_on};
use crate::inventory::Objects;
use crate::output::{self, plain};

/// Top: a live screen of jobs, GPUs, and power against the budget. Ctrl-C ends it.
///
/// GPUs and power are shown to those who may list GpuNodes (ClusterRole andreas-power-admin); the jobs of a namespace to those who may
/// list its TrainingJobs. Where standard output is no terminal, it is printed once.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Print it once
    #[arg(long)]
    once: bool,
    /// Seconds from one picture to the next
    #[arg(long, value_name = "S", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    #[command(flatten)]
    namespaces: Namespaces,
    #[command(flatten)]
    cluster: ConnectArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When the jobs may not be listed, or the API server does not answer at the beginning.
pub fn run(args: &TopArgs) -> Result<()> {
    block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let scope = cluster.scope(&args.namespaces);
        let mut frame = read(&cluster, &scope).await?;
        if args.once || !std::io::stdout().is_terminal() {
            let lines = frame.lines();
            return output::print(&lines.iter().map(|line| format!("{line}\n")).collect::<String>());
        }
        // What cannot be read was said once; a line more would move the picture.
        let cluster = cluster.without_warnings();
        let mut screen = Screen { term: Term::stdout(), drawn: 0 };
        let mut failure = None;
        loop {
            screen.draw(&frame, failure.as_deref());
            tokio::time::sleep(Duration::from_secs(args.interval)).await;
            failure = match read(&cluster, &scope).await {
                Ok(next) => {
                    frame = next;
                    None
                }
                // The last picture stays: an API server that restarts is back soon.
                Err(error) => Some(error.to_string()),
            };
        }
    })
}

/// The present state: all of it where that is allowed, else the jobs alone.
async fn read(cluster: &Cluster, scope: &Scope) -> Result<Frame, ClusterError> {
    match Objects::read(cluster).await {
        Ok(mut objects) => {
            let jobs = match (objects.jobs.as_mut(), scope.namespace()) {
                (Some(jobs), None) => jobs.clone(),
                (Some(jobs), Some(namespace)) => {
                    let here = |job: &&SlimTrainingJob| job.metadata.namespace.as_deref() == Some(namespace);
                    jobs.iter().filter(here).cloned().collect()
                }
                (None, namespace) => list(cluster, namespace).await?,
            };
            let (views, now) = (objects.views(), clock::now());
            let budget = Budget::new(&objects, &views, now);
            Ok(Frame { jobs, nodes: Some((views, budget)), now, all: scope.namespace().is_none() })
        }
        Err(ClusterError::Forbidden { .. }) => {
            let jobs = list(cluster, scope.namespace()).await?;
            Ok(Frame { jobs, nodes: None, now: clock::now(), all: scope.namespace().is_none() })
        }
        Err(error) => Err(error),
    }
}

async fn list(cluster: &Cluster, namespace: Option<&str>) -> Result<Vec<SlimTrainingJob>, ClusterError> {
    Ok(cluster.list(namespace, &Selection::default()).await?.items)
}

/// Draws in place on a terminal.
struct Screen {
    term: Term,
    drawn: usize,
}

impl Screen {
    /// Draws over what was drawn before. A terminal that is gone does not end the program.
    fn draw(&mut self, frame: &Frame, failure: Option<&str>) {
        let (rows, columns) = self.term.size();
        let mut lines = frame.lines();
        // The last rows are those of jobs that have ended: they are left out first.
        let room = usize::from(rows).saturating_sub(if failure.is_some() { 2 } else { 1 });
        lines.truncate(room);
        lines.extend(failure.map(|failure| format!("not refreshed: {}", plain(failure))));
        let _ = self.term.clear_last_lines(self.drawn);
        for line in &lines {
            let _ = self.term.write_line(&truncate_str(line, usize::from(columns), "…"));
        }
        self.drawn = lines.len();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::testing;
    use crate::inventory::testing::{gpu_nodes, jobs, nodes, policy};

    fn answer(line: &str, admin: bool) -> (u16, Value) {
        let list = |items: Value| (200, json!({"metadata": {"resourceVersion": "1"}, "items": items}));
        let path = line.split(' ').nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
        match path {
            "/apis/andreas.dev/v1alpha1/gpunodes" if admin => list(gpu_nodes()),
            "/api/v1/nodes" if admin => list(nodes()),
            "/apis/andreas.dev/v1alpha1/trainingjobs" if admin => list(jobs()),
            "/apis/andreas.dev/v1alpha1/energypolicies/default" if admin => (200, policy()),
            "/apis/andreas.dev/v1alpha1/namespaces/team-b/trainingjobs" => {
                let all = jobs();
                let here =
                    all.as_array().unwrap().iter().filter(|job| job["metadata"]["namespace"] == "team-b");
                list(here.cloned().collect())
            }
            other => testing::refusal(403, "Forbidden", &format!("User cannot list {other}"), ""),
        }
    }

    fn frame(admin: bool, scope: &Scope) -> Frame {
        block_on(async {
            let cluster = testing::cluster(move |line, _| answer(line, admin));
            Ok(read(&cluster, scope).await?)
        })
        .unwrap()
    }

    #[test]
    fn administrators_see_nodes_and_tenants_their_jobs() {
        let all = frame(true, &Scope::All);
        assert_eq!((all.jobs.len(), all.nodes.is_some()), (4, true));
        let one = frame(true, &Scope::Namespace("team-b".into()));
        assert_eq!((one.jobs.len(), one.nodes.is_some()), (2, true));
        let tenant = frame(false, &Scope::Namespace("team-b".into()));
        assert_eq!((tenant.jobs.len(), tenant.nodes.is_some()), (2, false));
    }
}
