//! `kubectl-andreas suspend`, `resume`, `cancel`.

use andreas_api::slim::SlimTrainingJob;
use andreas_api::{Phase, TrainingJob};
use anyhow::Result;
use clap::Args;
use serde::Serialize;
use serde_json::json;

use crate::cluster::{Cluster, ClusterError, ConnectArgs, block_on};
use crate::name;
use crate::output::{self, Column, Format, OutputArgs, plain_lines};

/// Which jobs, and how to print what was done.
#[derive(Debug, Args)]
pub struct ControlArgs {
    /// Names of TrainingJobs
    #[arg(value_name = "JOB", required = true, value_parser = name::job)]
    jobs: Vec<String>,
    /// Their namespace; that of the context without
    #[arg(long, short, value_name = "NAME", help_heading = "Cluster", value_parser = name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ConnectArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What is done to the jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Stopped until they are resumed.
    Suspend,
    /// Planned again.
    Resume,
    /// Deleted.
    Cancel,
}

/// What was done to a job.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Done {
    namespace: String,
    name: String,
    action: &'static str,
    /// Phase before the operator has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<Phase>,
}

const COLUMNS: [Column<Done>; 4] = [
    Column::text("NAME", |done| done.name.clone()),
    Column::text("ACTION", |done| done.action.to_owned()),
    Column::text("PHASE", |done| done.phase.map(|phase| phase.as_str().to_owned()).unwrap_or_default()),
    Column::text("NAMESPACE", |done| done.namespace.clone()),
];

/// Applies the action to every job. The last error is returned after the others were printed.
///
/// # Errors
/// When a job does not exist, or a right is missing.
pub fn run(args: &ControlArgs, action: Action) -> Result<()> {
    let (done, failed) = block_on(async {
        let cluster = Cluster::connect(&args.cluster).await?;
        let namespace = cluster.namespace_or(args.namespace.as_deref());
        Ok(apply_to_all(&cluster, &namespace, &args.jobs, action).await)
    })?;
    output::print(&text_of(args.output, &done)?)?;
    let mut failed = failed;
    let last = failed.pop();
    failed
        .iter()
        .for_each(|error| output::print_error(&format!("error: {}", plain_lines(&format!("{error:#}")))));
    last.map_or(Ok(()), Err)
}

async fn apply_to_all(
    cluster: &Cluster,
    namespace: &str,
    jobs: &[String],
    action: Action,
) -> (Vec<Done>, Vec<anyhow::Error>) {
    let (mut done, mut failed) = (Vec::new(), Vec::new());
    for (number, name) in jobs.iter().enumerate() {
        match apply_to_one(cluster, namespace, name, action).await {
            Ok(one) => done.push(one),
            Err(error) => failed.push(error),
        }
        // The others would wait for the same API server.
        let last = failed.last().and_then(|error| error.downcast_ref::<ClusterError>());
        if matches!(last, Some(ClusterError::Unreachable { .. })) {
            let left = &jobs[number + 1..];
            if let (false, Some(error)) = (left.is_empty(), failed.pop()) {
                failed.push(error.context(format!("not tried: {}", left.join(", "))));
            }
            break;
        }
    }
    (done, failed)
}

async fn apply_to_one(cluster: &Cluster, namespace: &str, name: &str, action: Action) -> Result<Done> {
    let of = |action, phase| Done { namespace: namespace.to_owned(), name: name.to_owned(), action, phase };
    let held = match action {
        Action::Cancel => {
            let job: SlimTrainingJob = cluster.get(Some(namespace), name).await?;
            match &job.spec.adopts {
                Some(adopted) => cluster.delete_adopted(namespace, adopted).await?,
                None => cluster.delete::<TrainingJob>(Some(namespace), name).await?,
            }
            return Ok(of("cancelled", None));
        }
        Action::Suspend => true,
        Action::Resume => false,
    };
    let change = json!({"spec": {"suspend": held}});
    let job: SlimTrainingJob = cluster.merge(Some(namespace), name, None, &change).await?;
    let phase = job.status.map(|status| status.phase).unwrap_or_default();
    let action = match (phase.is_terminal(), held) {
        (true, _) => "unchanged",
        (false, true) => "suspended",
        (false, false) => "resumed",
    };
    Ok(of(action, Some(phase)))
}

fn text_of(args: OutputArgs, done: &[Done]) -> Result<String> {
    match args.format {
        Format::Table => Ok(done.iter().map(sentence).collect()),
        _ => output::list(args, &COLUMNS, done, |done| format!("trainingjob/{}", done.name)),
    }
}

fn sentence(done: &Done) -> String {
    let name = output::plain(&done.name);
    match (done.action, done.phase) {
        ("unchanged", Some(phase)) => format!("trainingjob/{name} has ended already: {}\n", phase.as_str()),
        (action, _) => format!("trainingjob/{name} {action}\n"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::cluster::testing::{cluster, refusal};
    use crate::exit;
    use crate::inventory::testing::jobs;

    fn answer(request: &str, body: Value) -> (u16, Value) {
        if request.starts_with("DELETE /apis/batch/v1/namespaces/team-a/jobs/tune?") {
            assert_eq!(body["preconditions"]["uid"], "of-tune");
            return (200, json!({"kind": "Status", "status": "Success"}));
        }
        let path = "/apis/andreas.dev/v1alpha1/namespaces/team-a/trainingjobs/";
        let name = request.split(path).nth(1).unwrap_or_default().split('?').next().unwrap_or_default();
        let found = jobs().as_array().unwrap().iter().find(|job| job["metadata"]["name"] == name).cloned();
        match (request.split(' ').next(), found) {
            (_, None) => refusal(404, "NotFound", "not found", name),
            (Some("PATCH"), Some(mut job)) => {
                job["spec"]["suspend"] = body["spec"]["suspend"].clone();
                assert!(job["spec"]["suspend"].is_boolean(), "{body}");
                (200, job)
            }
            (Some("GET"), Some(mut job)) => {
                if name == "waits" {
                    let adopts = json!({"apiVersion": "batch/v1", "kind": "Job", "name": "tune", "uid": "of-tune", "pods": 1});
                    job["spec"]["adopts"] = adopts;
                }
                (200, job)
            }
            (Some("DELETE"), Some(job)) if job["metadata"]["name"] == "waits" => {
                panic!("its TrainingJob would be made again")
            }
            (Some("DELETE"), Some(_)) => (200, json!({"kind": "Status", "status": "Success"})),
            other => panic!("{other:?}"),
        }
    }

    fn done(names: &[&str], action: Action) -> (String, Vec<anyhow::Error>) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let (done, failed) =
            block_on(async { Ok(apply_to_all(&cluster(answer), "team-a", &names, action).await) }).unwrap();
        (text_of(OutputArgs::default(), &done).unwrap(), failed)
    }

    #[test]
    fn jobs_are_suspended_resumed_and_cancelled_by_name() {
        assert_eq!(done(&["bert-large"], Action::Suspend).0, "trainingjob/bert-large suspended\n");
        assert_eq!(done(&["waits"], Action::Resume).0, "trainingjob/waits resumed\n");
        assert_eq!(done(&["bert-large"], Action::Cancel).0, "trainingjob/bert-large cancelled\n");
        assert_eq!(done(&["broken"], Action::Suspend).0, "trainingjob/broken has ended already: Failed\n");
    }

    #[test]
    fn cancelling_an_adopted_job_deletes_the_workload() {
        let (text, failed) = done(&["waits"], Action::Cancel);
        assert_eq!((text.as_str(), failed.len()), ("trainingjob/waits cancelled\n", 0), "{failed:?}");
    }

    #[test]
    fn a_job_that_is_none_does_not_keep_the_others() {
        let (text, failed) = done(&["nobody", "waits"], Action::Suspend);
        assert_eq!(text, "trainingjob/waits suspended\n");
        assert_eq!(exit::code(&failed[0]), exit::NOT_FOUND);
        assert!(failed[0].to_string().contains("\"nobody\" in namespace team-a"), "{}", failed[0]);
    }

    #[test]
    fn names_and_json_say_the_same() {
        let rows = [Done { namespace: "a".into(), name: "b".into(), action: "cancelled", phase: None }];
        let of = |format| text_of(OutputArgs { format, no_headers: false }, &rows).unwrap();
        assert_eq!(of(Format::Name), "trainingjob/b\n");
        let json: Value = serde_json::from_str(&of(Format::Json)).unwrap();
        assert_eq!(json["items"][0], json!({"namespace": "a", "name": "b", "action": "cancelled"}));
    }
}
