//! `kubectl-andreas logs`: what the workers of a job print, each line with the rank of its worker.

mod lines;
mod workers;

use std::collections::BTreeSet;
use std::io::{IsTerminal as _, Write};
use std::time::Duration;

use andreas_api::slim::{SlimPod, SlimTrainingJob};
use anyhow::{Result, bail};
use clap::Args;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams};

pub use self::lines::{Line, lines, printable};
use self::workers::{Worker, selector, workers};
use crate::cluster::{Cluster, ClusterError, ConnectArgs, Right, Selection, block_on};
use crate::name;
use crate::output::plain;
use crate::when;

/// Between two questions for the log of a container that has not started.
const AGAIN: Duration = Duration::from_secs(2);

/// Logs: what all workers of a job print, each line with the rank of its worker, the one that failed first at the top.
///
/// Without --attempt, the newest attempt that has pods. The last attempts keep their pods (spec.historyLimit). With --follow the
/// lines of all workers come as they are written, until the attempt ends; why a log has not begun is said once. Needs the rights to get
/// the TrainingJob, its pods and their logs.
#[derive(Debug, Args)]
pub struct LogsArgs {
    /// Name of the TrainingJob
    #[arg(value_name = "JOB", value_parser = name::job)]
    job: String,
    /// Attempt, from 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..))]
    attempt: Option<i64>,
    /// Only the worker of this rank, from 0
    #[arg(long, value_name = "N")]
    rank: Option<usize>,
    /// Container; the one that trains without
    #[arg(long, short, value_name = "NAME")]
    container: Option<String>,
    /// Go on until the attempt ends
    #[arg(long, short)]
    follow: bool,
    /// Lines from the end of each worker's log; default: all
    #[arg(long, value_name = "LINES", value_parser = clap::value_parser!(i64).range(0..))]
    tail: Option<i64>,
    /// Only lines of this last time, for example 10m
    #[arg(long, value_name = "TIME", value_parser = when::duration)]
    since: Option<andreas_api::DurationText>,
    /// Begin each line with its time
    #[arg(long)]
    timestamps: bool,
    /// Lines without the rank of their worker
    #[arg(long)]
    no_prefix: bool,
    /// Namespace; that of the context without
    #[arg(long, short, value_name = "NAME", help_heading = "Cluster", value_parser = name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ConnectArgs,
}

/// Runs the subcommand.
///
/// # Errors
/// When there is no such job, it has no pods, none of their logs can be read, one of them ends early, or a right is missing.
pub fn run(args: &LogsArgs) -> Result<()> {
    block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref());
        let job: SlimTrainingJob = cluster.get(Some(&namespace), &args.job).await?;
        let selection = Selection::labels(selector(&job, args.attempt));
        let pods = cluster.list::<SlimPod>(Some(&namespace), &selection).await?.items;
        let container = args.container.as_deref().or_else(|| job.spec.training_container());
        let found = workers(&job, pods, args.attempt, args.rank, container.unwrap_or_default())?;
        for worker in &found {
            if let Some(end) = &worker.failure {
                crate::output::print_error(&format!("rank {} failed: {}", worker.rank, plain(end)));
            }
        }
        let open = streams(&cluster, &namespace, args, container, &found);
        let terminal = std::io::stdout().is_terminal();
        show(open, found.len(), args, terminal, &mut std::io::stdout().lock()).await
    })
}

/// Prints the log lines of `workers` workers as they arrive.
async fn show(
    mut open: BoxStream<'_, Line>,
    workers: usize,
    args: &LogsArgs,
    terminal: bool,
    out: &mut impl Write,
) -> Result<()> {
    let (mut missing, mut cut, mut any) = (BTreeSet::new(), BTreeSet::new(), false);
    while let Some(line) = open.next().await {
        match line {
            Line::Text { rank, text } => {
                any = true;
                if !args.no_prefix {
                    write!(out, "[{rank}] ")?;
                }
                if terminal {
                    out.write_all(printable(&text).as_bytes())?
                } else {
                    out.write_all(&text)?
                }
                out.write_all(b"\n")?;
                if args.follow {
                    out.flush()?;
                }
            }
            Line::Missing { rank, why } => {
                missing.insert(rank);
                crate::output::print_error(&format!("rank {rank}: {}", plain(&why)));
            }
            Line::Cut { rank, why } => {
                cut.insert(rank);
                crate::output::print_error(&format!("rank {rank}: {}", plain(&why)));
            }
            Line::Refused(error) => return Err(error.into()),
        }
    }
    out.flush()?;
    if !cut.is_empty() {
        let ranks: Vec<String> = cut.iter().map(usize::to_string).collect();
        bail!("the log is not complete: rank {}", ranks.join(", "));
    }
    if !any && missing.len() == workers {
        bail!("no log could be read");
    }
    Ok(())
}

/// The lines of all workers: one worker after the other, or as they come with `--follow`.
fn streams<'a>(
    cluster: &'a Cluster,
    namespace: &'a str,
    args: &'a LogsArgs,
    container: Option<&'a str>,
    workers: &'a [Worker],
) -> BoxStream<'a, Line> {
    let params = LogParams {
        container: container.map(str::to_owned),
        follow: args.follow,
        tail_lines: args.tail,
        since_seconds: args.since.as_ref().and_then(andreas_api::DurationText::seconds),
        timestamps: args.timestamps,
        ..LogParams::default()
    };
    let one = move |worker: &'a Worker| of_worker(cluster, namespace, worker, params.clone());
    if args.follow {
        stream::select_all(workers.iter().map(one)).boxed()
    } else {
        stream::iter(workers).flat_map(one).boxed()
    }
}

fn of_worker<'a>(
    cluster: &'a Cluster,
    namespace: &'a str,
    worker: &'a Worker,
    params: LogParams,
) -> BoxStream<'a, Line> {
    let rank = worker.rank;
    // Why the log has not begun, as far as it was shown; `None`: nothing more comes.
    stream::unfold(Some(Vec::new()), move |shown: Option<Vec<String>>| {
        let params = params.clone();
        async move {
            let mut shown = shown?;
            let mut ended = worker.ended;
            loop {
                let error = match open(cluster, namespace, worker, &params).await {
                    Ok(lines) => return Some((lines, None)),
                    Err(error) => error,
                };
                let waits = params.follow && !ended && may_begin(&error);
                if waits {
                    ended = match cluster.get::<SlimPod>(Some(namespace), &worker.pod).await {
                        Ok(pod) => pod.has_ended(),
                        Err(ClusterError::NotFound(_)) => true,
                        Err(error) => return Some((one(Line::Refused(error)), None)),
                    };
                    if ended {
                        // Its container may have run meanwhile.
                        continue;
                    }
                }
                let line = match error {
                    ClusterError::Refused(why) if !shown.contains(&why) => {
                        shown.push(why.clone());
                        Line::Missing { rank, why }
                    }
                    _ if waits => {
                        tokio::time::sleep(AGAIN).await;
                        continue;
                    }
                    ClusterError::Refused(_) => return None,
                    ClusterError::NotFound(_) => Line::Missing { rank, why: "its pod is gone".to_owned() },
                    error => Line::Refused(error),
                };
                return Some((one(line), waits.then_some(shown)));
            }
        }
    })
    .flatten()
    .boxed()
}

/// The lines of a worker's log. With `--follow` the pod may have no node yet.
async fn open(
    cluster: &Cluster,
    namespace: &str,
    worker: &Worker,
    params: &LogParams,
) -> Result<BoxStream<'static, Line>, ClusterError> {
    let mut bound = worker.bound || worker.ended || !params.follow;
    while !bound {
        // The log of such a pod is empty and ends at once.
        let pod: SlimPod = cluster.get(Some(namespace), &worker.pod).await?;
        bound = pod.spec.node_name.is_some() || pod.has_ended();
        if !bound {
            tokio::time::sleep(AGAIN).await;
        }
    }
    let pods: Api<Pod> = Api::namespaced(cluster.client(), namespace);
    let right = Right::new::<Pod>("get", Some(namespace)).on("log");
    match pods.log_stream(&worker.pod, params).await {
        Ok(reader) => Ok(lines(worker.rank, Box::pin(reader)).boxed()),
        Err(error) => Err(ClusterError::from_client(error, cluster.url(), &right, Some(&worker.pod))),
    }
}

/// Whether the log may begin later: its container waits, or the kubelet does not know it or its pod yet.
fn may_begin(error: &ClusterError) -> bool {
    match error {
        ClusterError::NotFound(_) => true,
        ClusterError::Refused(why) => why.contains("is waiting to start") || why.contains("is not available"),
        _ => false,
    }
}

fn one(line: Line) -> BoxStream<'static, Line> {
    stream::iter([line]).boxed()
}

#[cfg(test)]
mod tests;
