//! `profile export` and `profile import`: what one cluster learned is known to another from its first job.

use std::path::{Path, PathBuf};

use andreas_api::{TrainingProfile, TrainingProfileStatus};
use andreas_predictor::Profile;
use anyhow::{Context, Result, bail};
use clap::Args;
use serde_json::json;

use super::kubectl::Cluster;
use super::{read_text, write};

/// Write a TrainingProfile with everything observed, without what ties it to its cluster.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Name of the profile
    name: String,
    #[command(flatten)]
    cluster: Cluster,
    /// Write there instead of to standard output
    #[arg(long, short, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Bring an exported TrainingProfile into a cluster; observations that it already has stay and are joined.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// An exported profile (YAML or JSON)
    file: PathBuf,
    /// Name it gets; its own when absent
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    cluster: Cluster,
}

/// As the custom resource bounds them.
const MAX_OBSERVATIONS: usize = 64;
const RESOURCE: &str = "trainingprofiles.andreas.dev";

/// A profile from text, YAML or JSON.
pub(super) fn parse(text: &str, name: &str) -> Result<TrainingProfile> {
    let profile: TrainingProfile =
        serde_saphyr::from_str(text).map_err(|e| anyhow::anyhow!("{name}: {e}"))?;
    if profile.metadata.name.is_none() {
        bail!("{name}: metadata.name: a profile has a name");
    }
    Ok(profile)
}

pub(super) fn read(file: &Path) -> Result<TrainingProfile> {
    parse(&read_text(file)?, &file.display().to_string())
}

pub(super) fn get(name: &str, cluster: &Cluster) -> Result<TrainingProfile> {
    let found = cluster.run(&["get", RESOURCE, name, "--output=json"], None)?;
    parse(&String::from_utf8(found).context("kubectl's answer")?, name)
}

/// What is worth taking along: name, labels, spec, and of the status what was learned. Who ran it is another cluster's affair,
/// but one run stays told from another.
fn exported(profile: &TrainingProfile) -> serde_json::Value {
    let mut status = profile.status.clone().unwrap_or_default();
    status.finished_runs.sort_by(|a, b| a.at.0.cmp(&b.at.0).then(a.run.cmp(&b.run)));
    let mut metadata = json!({"name": profile.metadata.name});
    if let Some(labels) = &profile.metadata.labels {
        metadata["labels"] = json!(labels);
    }
    json!({
        "apiVersion": "andreas.dev/v1alpha1", "kind": "TrainingProfile", "metadata": metadata,
        "spec": profile.spec, "status": status,
    })
}

/// Writes a profile out.
pub fn export(args: &ExportArgs) -> Result<()> {
    let profile = get(&args.name, &args.cluster)?;
    let text = serde_saphyr::to_string(&exported(&profile)).context("as YAML")?;
    write(args.out.as_ref(), text.as_bytes())
}

/// The observations of both, each run once, the newest kept.
fn joined(here: TrainingProfileStatus, brought: TrainingProfileStatus) -> TrainingProfileStatus {
    let mut all = here;
    for o in brought.observations {
        if !all.observations.contains(&o) {
            all.observations.push(o);
        }
    }
    all.observations.sort_by(|a, b| a.at.0.cmp(&b.at.0).then(a.run.cmp(&b.run)));
    let over = all.observations.len().saturating_sub(MAX_OBSERVATIONS);
    all.observations.drain(..over);
    for run in brought.finished_runs {
        if !all.finished_runs.contains(&run) && all.finished_runs.len() < 16 {
            all.finished_runs.push(run);
        }
    }
    for gpu_type in brought.out_of_memory_types {
        if !all.out_of_memory_types.contains(&gpu_type) && all.out_of_memory_types.len() < 32 {
            all.out_of_memory_types.push(gpu_type);
        }
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
    args.cluster.run(&["apply", "--filename=-"], Some(object.to_string().as_bytes()))?;
    let here = get(&name, &args.cluster)?;
    let status = joined(here.status.unwrap_or_default(), brought.status.unwrap_or_default());
    // The version read here: a run that taught something meanwhile is not written over.
    let patch = json!({"metadata": {"resourceVersion": here.metadata.resource_version}, "status": status});
    let patch = format!("--patch={patch}");
    args.cluster.run(&["patch", RESOURCE, &name, "--subresource=status", "--type=merge", &patch], None)?;
    println!("{name}: {} observations", status.observations.len());
    Ok(())
}

/// A TrainingProfile as the predictor reads it.
pub(super) fn family(profile: &TrainingProfile) -> Profile {
    let name = profile.metadata.name.clone().unwrap_or_default();
    andreas_profiles::family(name, &profile.spec, profile.status.as_ref())
}

#[cfg(test)]
mod tests {
    use andreas_core::Seconds;

    use super::*;

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
        let family = family(&again);
        assert_eq!((family.given.len(), family.observations.len()), (1, 1));
        assert_eq!(family.observations[0].epoch, Some(Seconds(35.0)));
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
        assert_eq!(joined(once, many).observations.len(), MAX_OBSERVATIONS);
        assert!(parse("spec: {}", "x").is_err());
    }
}
