//! `profile show`: the curves of one profile and the points they rest on.

use std::collections::BTreeSet;
use std::path::PathBuf;

use andreas_core::{Configuration, GpuCount, GpuType};
use andreas_predictor::{GpuModel, Predictor, Profile, Query};
use anyhow::{Context, Result, bail};
use clap::Args;

use super::kubectl::Cluster;
use super::plot::{Series, svg, text};
use super::{csv, gpu_models, learned, transfer, write};

/// Draw the curves of a profile, and what was measured, over the number of GPUs.
///
/// From a table (--data, with the profile's name), from a TrainingProfile in a file (--file), or from the cluster by name.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the profile
    #[arg(required_unless_present = "file")]
    name: Option<String>,
    /// Measurements (CSV, see `profile predict --help`)
    #[arg(long, value_name = "CSV", conflicts_with = "file")]
    data: Option<PathBuf>,
    /// A TrainingProfile (YAML or JSON)
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Draw to this file as SVG too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    cluster: Cluster,
}

/// Does it.
pub fn run(args: &ShowArgs) -> Result<()> {
    let (predictor, profile) = match (&args.data, &args.file, &args.name) {
        (Some(data), _, Some(name)) => {
            let samples = csv::read(data)?.samples;
            let (predictor, mut profiles) = learned(&samples, &gpu_models(&samples));
            let known: Vec<String> = profiles.keys().take(20).cloned().collect();
            let found = profiles.remove(name);
            let profile = found.with_context(|| {
                format!("{}: no profile {name}; it has {}", data.display(), known.join(", "))
            })?;
            (predictor, profile)
        }
        (_, Some(file), _) => alone(transfer::family(&transfer::read(file)?)),
        (_, None, Some(name)) => alone(transfer::family(&transfer::get(name, &args.cluster)?)),
        (_, None, None) => bail!("a profile's name, or --file"),
    };
    let series = series(&predictor, &profile);
    if let Some(file) = &args.svg {
        write(Some(file), svg(&profile.name, &series).as_bytes())?;
    }
    write(None, text(&profile.name, &series).as_bytes())
}

/// A profile that nothing else is known beside.
fn alone(profile: Profile) -> (Predictor, Profile) {
    let types: BTreeSet<GpuType> = types(&profile);
    let model = |gpu_type: &GpuType| {
        let (idle, max) = andreas_core::board_power(gpu_type.as_str())?;
        Some(GpuModel { gpu_type: gpu_type.clone(), idle, max })
    };
    let models: Vec<GpuModel> = types.iter().filter_map(model).collect();
    (Predictor::fit(&models, std::slice::from_ref(&profile)), profile)
}

fn types(profile: &Profile) -> BTreeSet<GpuType> {
    let given = profile.given.iter().map(|g| g.gpu_type.clone());
    given.chain(profile.observations.iter().map(|o| o.configuration.gpu_type.clone())).collect()
}

fn series(predictor: &Predictor, profile: &Profile) -> Vec<Series> {
    let of = |gpu_type: GpuType| {
        let observed = profile.observations.iter().filter(|o| o.configuration.gpu_type == gpu_type);
        let mut points: Vec<(u32, f64)> = observed
            .clone()
            .filter_map(|o| Some((o.gpus.unwrap_or(o.configuration.total_gpus()).0, o.epoch?.0)))
            .collect();
        let given = profile.given.iter().filter(|g| g.gpu_type == gpu_type);
        points.extend(given.clone().filter_map(|g| Some((g.gpus.0, g.epoch?.0))));
        points.retain(|(gpus, time)| *gpus > 0 && time.is_finite() && *time > 0.0);
        let mut batches: Vec<f64> = observed.clone().filter_map(|o| o.batch).collect();
        batches.sort_by(f64::total_cmp);
        let batch = batches.get(batches.len() / 2).copied();
        let per_node = observed.map(|o| o.configuration.gpus_per_node.0).max().unwrap_or(8).max(1);
        let most = points.iter().map(|(g, _)| *g).max().unwrap_or(1).clamp(8, 4096);
        let counts: Vec<u32> = (1..=most).filter(|g| *g <= 16 || g % (most / 16).max(1) == 0).collect();
        let query = |gpus: &u32| Query {
            configuration: Configuration {
                gpu_type: gpu_type.clone(),
                nodes: gpus.div_ceil(per_node),
                gpus_per_node: GpuCount((*gpus).min(per_node)),
                limit: None,
            },
            gpus: Some(GpuCount(*gpus)),
            batch,
        };
        let queries: Vec<Query> = counts.iter().map(query).collect();
        let answers = predictor.answer(profile, None, &queries);
        let curve =
            counts.iter().zip(answers).map(|(g, p)| (*g, [p.epoch.median, p.epoch.low(), p.epoch.high()]));
        Series { name: gpu_type.to_string(), curve: curve.collect(), points }
    };
    types(profile).into_iter().map(of).collect()
}
