//! `profile export` and `profile import`: what one cluster learned is known to another from its first job.

use std::path::{Path, PathBuf};

use andreas_api::{TrainingProfile, TrainingProfileStatus};
use anyhow::{Context, Result, bail};
use clap::Args;
use serde::Deserialize;
use serde_json::json;

use super::{Where, read_text, write};
use crate::cluster::{Cluster, ClusterError, block_on};
use crate::{name, output};

/// Write a TrainingProfile with everything observed, without what ties it to its cluster.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Name of the profile
    name: String,
    #[command(flatten)]
    cluster: Where,
    /// Write there instead of to standard output
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Bring an exported TrainingProfile into a cluster; observations that it already has stay and are joined.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// An exported profile (YAML or JSON)
    file: PathBuf,
    /// Name it gets; its own when absent
    #[arg(long, value_name = "NAME", value_parser = name::object)]
    name: Option<String>,
    #[command(flatten)]
    cluster: Where,
}

/// Writes of one import: a run that ends meanwhile writes too.
const TRIES: usize = 4;
const API_VERSION: &str = "andreas.dev/v1alpha1";
const KIND: &str = "TrainingProfile";

/// What an object says that it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Typed {
    api_version: String,
    kind: String,
}

/// A profile from text, YAML or JSON; `name` is the text's, for messages.
///
/// # Errors
/// When it is no TrainingProfile with a name.
pub fn parse(text: &str, name: &str) -> Result<TrainingProfile> {
    let typed: Typed = serde_saphyr::from_str(text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    if (typed.kind.as_str(), typed.api_version.as_str()) != (KIND, API_VERSION) {
        bail!(
            "{name}: kind: a {KIND} of {API_VERSION} is wanted, not a {} of {}",
            typed.kind,
            typed.api_version
        );
    }
    let profile: TrainingProfile =
        serde_saphyr::from_str(text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    if profile.metadata.name.is_none() {
        bail!("{name}: metadata.name: a profile has a name");
    }
    Ok(profile)
}

fn read(file: &Path) -> Result<TrainingProfile> {
    parse(&read_text(file)?, &file.display().to_string())
}

fn get(name: &str, place: &Where) -> Result<TrainingProfile> {
    block_on(async {
        let cluster = Cluster::connect(&place.connect).await?;
        Ok(cluster.get(Some(&cluster.namespace_or(place.namespace.as_deref())), name).await?)
    })
}

/// The parts that are useful in another cluster: name, labels, spec, and what was learned. Runs keep their names, so that a
/// later import adds each run once.
fn exported(profile: &TrainingProfile) -> serde_json::Value {
    let mut status = profile.status.clone().unwrap_or_default();
    status.finished_runs.sort_by(|a, b| a.at.0.cmp(&b.at.0).then(a.run.cmp(&b.run)));
    let mut metadata = json!({"name": profile.metadata.name});
    if let Some(labels) = &profile.metadata.labels {
        metadata["labels"] = json!(labels);
    }
    json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata,
        "spec": profile.spec, "status": status,
    })
}

/// Writes a profile out.
pub fn export(args: &ExportArgs) -> Result<()> {
    let profile = get(&args.name, &args.cluster)?;
    let text = serde_saphyr::to_string(&exported(&profile)).context("as YAML")?;
    write(args.out.as_ref(), text.as_bytes())
}

/// The observations of both, each run once; what is known here counts.
fn joined(here: TrainingProfileStatus, brought: TrainingProfileStatus) -> TrainingProfileStatus {
    let mut all = here;
    for o in brought.observations {
        if !all.observations.iter().any(|known| andreas_cluster::profiles::same_run(known, &o)) {
            all.observations.push(o);
        }
    }
    all.observations.sort_by(|a, b| a.at.0.cmp(&b.at.0).then(a.run.cmp(&b.run)));
    andreas_cluster::profiles::trim_observations(&mut all.observations);
    for run in brought.finished_runs {
        if !all.finished_runs.contains(&run) && all.finished_runs.len() < 16 {
            all.finished_runs.push(run);
        }
    }
    for barred in brought.barred {
        andreas_cluster::profiles::bar(&mut all.barred, barred);
    }
    all
}

/// Brings a profile in.
pub fn import(args: &ImportArgs) -> Result<()> {
    let brought = read(&args.file)?;
    let own = brought.metadata.name.clone().unwrap_or_default();
    let name = args.name.clone().unwrap_or(own);
    let mut object = exported(&brought);
    object["metadata"]["name"] = json!(name);
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let brought = brought.status.unwrap_or_default();
    let observations = block_on(async {
        let cluster = Cluster::connect(&args.cluster.connect).await?;
        let namespace = cluster.namespace_or(args.cluster.namespace.as_deref());
        store(&cluster, &namespace, &name, &object, brought).await
    })?;
    output::print(&format!("{name}: {observations} observations\n"))
}

/// Writes the spec, then joins the observations; how many there are then.
async fn store(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    object: &serde_json::Value,
    brought: TrainingProfileStatus,
) -> Result<usize> {
    let mut here: TrainingProfile = cluster.apply(Some(namespace), name, object).await?;
    for round in 1.. {
        let status = joined(here.status.unwrap_or_default(), brought.clone());
        // The version read here: a run that taught something meanwhile is not written over.
        let change =
            json!({"metadata": {"resourceVersion": here.metadata.resource_version}, "status": status});
        match cluster.merge::<TrainingProfile>(Some(namespace), name, Some("status"), &change).await {
            Err(ClusterError::Conflict(_)) if round < TRIES => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(status.observations.len()),
        }
        here = cluster.get(Some(namespace), name).await?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use andreas_model::Seconds;

    use super::*;
    use crate::cluster::testing;

    const PROFILE: &str = "
apiVersion: andreas.dev/v1alpha1
kind: TrainingProfile
metadata: {name: bert, namespace: lab, uid: 1-2-3, resourceVersion: '77', labels: {team: nlp}}
spec:
  measurements: [{gpuType: T4, gpus: 2, millisPerEpoch: 60000, watts: 130}]
status:
  observations:
  - {run: a-1, gpuType: T4, gpus: 4, nodes: 1, millisPerEpoch: 35000, milliEpochs: 3000, at: '2026-01-02T03:04:05Z'}
";

    #[test]
    fn what_ties_a_profile_to_its_cluster_stays_behind_and_what_was_learned_goes_along() {
        let profile = parse(PROFILE, "profile").unwrap();
        let exported = exported(&profile);
        assert_eq!(exported["metadata"], json!({"name": "bert", "labels": {"team": "nlp"}}));
        let again = parse(&serde_saphyr::to_string(&exported).unwrap(), "again").unwrap();
        assert_eq!((&again.spec, &again.status), (&profile.spec, &profile.status));
        let converted = andreas_cluster::profiles::to_predictor_profile(
            "bert".to_owned(),
            &again.spec,
            again.status.as_ref(),
        );
        assert_eq!((converted.given.len(), converted.observations.len()), (1, 1));
        assert_eq!(converted.observations[0].epoch, Some(Seconds(35.0)));
    }

    #[test]
    fn an_import_joins_what_was_observed_meanwhile() {
        let here = |version: u32| {
            let mut profile = serde_json::to_value(parse(PROFILE, "profile").unwrap()).unwrap();
            profile["metadata"]["resourceVersion"] = json!(version.to_string());
            profile["status"]["observations"][0]["run"] = json!(format!("here-{version}"));
            profile
        };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let calls = Arc::clone(&seen);
        let answer = move |line: &str, body: serde_json::Value| {
            let mut calls = calls.lock().unwrap();
            calls.push((line.split('?').next().unwrap().to_owned(), body));
            match calls.len() {
                1 => (200, here(5)),
                // Given that the operator writes between the read and the write,
                2 => testing::refusal(409, "Conflict", "the object has been modified", "bert"),
                _ => (200, here(6)),
            }
        };
        // when a profile is imported,
        let object =
            json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "bert"}, "spec": {}});
        let brought = parse(PROFILE, "profile").unwrap().status.unwrap();
        let count =
            block_on(async { store(&testing::cluster(answer), "lab", "bert", &object, brought).await })
                .unwrap();
        // then it is read again, and both runs are written, of the version that was read.
        assert_eq!(count, 2);
        let calls = seen.lock().unwrap();
        let path = "/apis/andreas.dev/v1alpha1/namespaces/lab/trainingprofiles/bert";
        let lines: Vec<&str> = calls.iter().map(|(line, _)| line.as_str()).collect();
        let [apply, read, write] =
            [format!("PATCH {path}"), format!("GET {path}"), format!("PATCH {path}/status")];
        assert_eq!(lines, [&apply, &write, &read, &write]);
        assert_eq!(calls[3].1["metadata"]["resourceVersion"], "6");
        let runs: Vec<_> =
            calls[3].1["status"]["observations"].as_array().unwrap().iter().map(|row| &row["run"]).collect();
        assert!(runs.contains(&&json!("here-6")) && runs.contains(&&json!("a-1")), "{runs:?}");
    }

    #[test]
    fn joining_twice_is_joining_once_and_stays_bounded() {
        let status = parse(PROFILE, "profile").unwrap().status.unwrap();
        let once = joined(TrainingProfileStatus::default(), status.clone());
        assert_eq!(joined(once.clone(), status.clone()), once);
        let mut many = status.clone();
        for n in 0..100 {
            let mut o = status.observations[0].clone();
            o.run = format!("b-{n}");
            many.observations.push(o);
        }
        assert_eq!(
            joined(once.clone(), many).observations.len(),
            andreas_cluster::profiles::MAX_OBSERVATIONS
        );
        // What became known here since it was exported stays.
        let mut metered = once;
        metered.observations[0].watts = Some(250);
        assert_eq!(joined(metered.clone(), status), metered);
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        for text in [
            "spec: {}",
            "apiVersion: v1\nkind: Pod\nmetadata: {name: mine}\nspec: {}\n",
            "apiVersion: example.org/v1\nkind: TrainingProfile\nmetadata: {name: mine}\nspec: {}\n",
            "apiVersion: andreas.dev/v1alpha1\nkind: TrainingProfile\nmetadata: {}\nspec: {}\n",
        ] {
            let error = parse(text, "x.yaml").map(|_| ()).unwrap_err().to_string();
            assert!(error.starts_with("x.yaml"), "{error}");
        }
    }
}
