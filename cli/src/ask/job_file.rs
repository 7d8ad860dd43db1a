//! The job that a question is about: from a manifest, and judged by the API server.

use std::collections::BTreeMap;
use std::path::Path;

use andreas_api::TrainingJob;
use andreas_api::names::{GROUP, LABEL_PROFILE, VERSION};
use andreas_api::query::{JobObject, request::JobMetadata};
use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;

use crate::cluster::{Cluster, ClusterError};
use crate::input;
use crate::name;
use crate::output::plain;

/// Stands for an image that the file does not name: the answer does not depend on it.
const IMAGE: &str = "unknown";
/// Name of a job without one, for the API server.
const UNNAMED: &str = "asked";

/// Reads a job and its namespace, if it names one, from a YAML or JSON file or an sbatch script; `-` is standard input. What is no
/// TrainingJob is converted as `convert` does.
///
/// # Errors
/// When the file cannot be read, or has no job or several, or its namespace is none.
pub fn read(file: &Path) -> Result<(JobObject, Option<String>)> {
    let name = input::name_of(file);
    let text = input::read(file, input::MANIFESTS).with_context(|| name.clone())?;
    parse(&text).with_context(|| name.clone())
}

fn parse(text: &str) -> Result<(JobObject, Option<String>)> {
    let mut found = andreas_workloads::convert::convert(text, Some(IMAGE), &[])?;
    let (Some(one), true) = (found.pop(), found.is_empty()) else {
        bail!("holds several jobs: ask about one at a time");
    };
    if one.notes.iter().any(|note| note.level == andreas_workloads::convert::Level::Lost) {
        crate::output::print_error(&format!(
            "note: {} is converted and loses something: see kubectl andreas convert",
            plain(&one.source)
        ));
    }
    if !one.job["spec"].is_object() {
        bail!("spec: is missing");
    }
    let metadata = &one.job["metadata"];
    let name = metadata["name"].as_str().map(str::to_owned);
    let namespace = metadata["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let namespace = namespace.map(name::namespace).transpose();
    let namespace = namespace.map_err(|problem| anyhow!("metadata.namespace: {problem}"))?;
    // What the operator reads of the labels.
    let profile = metadata["labels"][LABEL_PROFILE].as_str();
    let labels = profile.map(|profile| BTreeMap::from([(LABEL_PROFILE.to_owned(), profile.to_owned())]));
    Ok((JobObject { metadata: JobMetadata { name, labels }, spec: one.job["spec"].clone() }, namespace))
}

/// The job with its defaults, if the API server would create it. Nothing is created.
///
/// # Errors
/// What the API server refuses, and when the caller may not create TrainingJobs there.
pub async fn checked(cluster: &Cluster, namespace: &str, job: JobObject) -> Result<JobObject> {
    let create = async |name: &str| {
        let object = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "TrainingJob",
            "metadata": {"name": name, "namespace": namespace, "labels": job.metadata.labels}, "spec": job.spec,
        });
        cluster.create::<TrainingJob, _>(Some(namespace), &object, true).await
    };
    let made = match create(job.metadata.name.as_deref().unwrap_or(UNNAMED)).await {
        // Its name has been judged before that.
        Err(ClusterError::Refused(message)) if message.contains("already exists") => {
            create(&format!("{UNNAMED}-{}", std::process::id())).await?
        }
        made => made?,
    };
    Ok(JobObject { spec: serde_json::to_value(&made.spec)?, ..job })
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn a_training_job_is_read_and_others_are_named() {
        let (job, namespace) =
            parse("kind: TrainingJob\nmetadata: {name: bert, labels: {a: b}}\nspec: {epochs: 3}").unwrap();
        assert_eq!((job.metadata.name.as_deref(), &job.spec["epochs"]), (Some("bert"), &Value::from(3)));
        assert_eq!((namespace, job.metadata.labels), (None, None));
        let error = |text: &str| format!("{:#}", parse(text).unwrap_err());
        assert!(error("kind: PyTorchJob\nspec: {}").contains("PyTorchJob"));
        assert!(error("spec: {}").contains("kind"));
        assert!(error("kind: TrainingJob").contains("spec"));
        assert!(error("[").contains("YAML"));
    }

    #[test]
    fn the_label_that_names_a_profile_is_part_of_the_question() {
        let labels = "metadata: {name: a, labels: {team: b, andreas.dev/profile: bert}}";
        let job = "apiVersion: batch/v1\nkind: Job\nspec: {template: {spec: {containers: [{name: c}]}}}";
        for kind in ["kind: TrainingJob\nspec: {}", job] {
            let (read, _) = parse(&format!("{labels}\n{kind}\n")).unwrap();
            let labels = read.metadata.labels.unwrap();
            assert_eq!(
                labels.into_iter().collect::<Vec<_>>(),
                [("andreas.dev/profile".to_owned(), "bert".to_owned())]
            );
        }
    }

    #[test]
    fn other_jobs_are_converted() {
        let job = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec: {template: {spec: {containers: \
                   [{name: c, resources: {limits: {nvidia.com/gpu: 2}}}]}}}\n";
        let (read, _) = parse(job).unwrap();
        assert_eq!((read.metadata.name.as_deref(), &read.spec["gpus"]["min"]), (Some("a"), &Value::from(2)));
        assert!(parse(&format!("{job}---\n{job}")).unwrap_err().to_string().contains("several"));
    }

    #[test]
    fn the_namespace_is_that_of_the_manifest() {
        let of = |namespace: &str| {
            let metadata = format!("metadata: {{name: a, namespace: {namespace}}}");
            parse(&format!("kind: TrainingJob\n{metadata}\nspec: {{}}\n"))
        };
        assert_eq!(of("team-b").unwrap().1.as_deref(), Some("team-b"));
        assert_eq!(of("''").unwrap().1, None);
        assert!(of("../team-b").unwrap_err().to_string().starts_with("metadata.namespace: "));
    }
}
