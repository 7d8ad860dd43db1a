//! `profile show`: the curves of one profile and the points they rest on.

use std::collections::BTreeSet;
use std::path::PathBuf;

use andreas_core::{Configuration, GpuCount, GpuType};
use andreas_predictor::{GpuModel, Observation, Prediction, Predictor, Profile, Query};
use anyhow::{Context, Result, bail};
use clap::Args;

use super::csv::Purpose;
use super::plot::{Chart, Measure, Point, Series, svg, text};
use super::typical::TypicalWorkload;
use super::{Where, csv, gpu_models, learned, transfer, write};
use crate::name;

/// Draw the curves of a profile, seconds per epoch and watts, and what was measured, over the number of GPUs.
///
/// From a table (--data, with the profile's name), from a TrainingProfile in a file (--file), or from the cluster by name.
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the profile
    #[arg(required_unless_present = "file", value_parser = name::object)]
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
    cluster: Where,
}

/// Runs the subcommand.
pub fn run(args: &ShowArgs) -> Result<()> {
    let (predictor, profile, types) = match (&args.data, &args.file, &args.name) {
        (Some(data), _, Some(name)) => {
            let samples = csv::read(data, Purpose::Measurements)?.samples;
            let (predictor, mut profiles) = learned(&samples, &gpu_models(&samples));
            let known: Vec<String> = profiles.keys().take(20).cloned().collect();
            let found = profiles.remove(name);
            let profile = found.with_context(|| {
                format!("{}: no profile {name}; it has {}", data.display(), known.join(", "))
            })?;
            let own = samples.iter().filter(|sample| sample.profile == *name);
            (predictor, profile, own.map(|sample| sample.gpu_type.as_str().into()).collect())
        }
        (_, Some(file), _) => fit_alone(transfer::predictor_profile(&transfer::read(file)?)),
        (_, None, Some(name)) => fit_alone(transfer::predictor_profile(&transfer::get(name, &args.cluster)?)),
        (_, None, None) => bail!("a profile's name, or --file"),
    };
    if types.is_empty() {
        bail!("{}: nothing was measured of it, and nothing observed", profile.name);
    }
    let charts = charts(&predictor, &profile, &types);
    if let Some(file) = &args.svg {
        write(Some(file), svg(&profile.name, &charts).as_bytes())?;
    }
    write(None, text(&profile.name, &charts).as_bytes())
}

/// A profile that nothing else is known beside.
fn fit_alone(profile: Profile) -> (Predictor, Profile, BTreeSet<GpuType>) {
    let types: BTreeSet<GpuType> = types(&profile);
    let model = |gpu_type: &GpuType| {
        let (idle, max) = andreas_core::board_power(gpu_type.as_str())?;
        Some(GpuModel { gpu_type: gpu_type.clone(), idle, max })
    };
    let models: Vec<GpuModel> = types.iter().filter_map(model).collect();
    (Predictor::fit(&models, std::slice::from_ref(&profile)), profile, types)
}

fn types(profile: &Profile) -> BTreeSet<GpuType> {
    let given = profile.given.iter().map(|g| g.gpu_type.clone());
    given.chain(profile.observations.iter().map(|o| o.configuration.gpu_type.clone())).collect()
}

/// Time, and watts where there are any.
fn charts(predictor: &Predictor, profile: &Profile, types: &BTreeSet<GpuType>) -> Vec<Chart> {
    let both: Vec<[Series; 2]> = types.iter().map(|gpu_type| series(predictor, profile, gpu_type)).collect();
    let [times, watts] = [0, 1].map(|at| both.iter().map(|pair| pair[at].clone()).collect::<Vec<Series>>());
    let metered = watts.iter().any(|s| !s.points.is_empty());
    let mut charts = vec![Chart { measure: Measure::Epoch, series: times }];
    charts.extend(metered.then_some(Chart { measure: Measure::Power, series: watts }));
    charts
}

/// The curves of one GPU type and what was measured on it: times and watts.
fn series(predictor: &Predictor, profile: &Profile, gpu_type: &GpuType) -> [Series; 2] {
    let rows: Vec<&Observation> =
        profile.observations.iter().filter(|o| o.configuration.gpu_type == *gpu_type).collect();
    let count = |o: &Observation| o.gpus.unwrap_or(o.configuration.total_gpus()).0;
    let typical = TypicalWorkload::from_rows(rows.iter().map(|o| (count(o), o.configuration.nodes, o.batch)));
    let mut points: [Vec<Point>; 2] = Default::default();
    let mut take = |gpus: u32, on_curve: bool, time: Option<f64>, watts: Option<f64>| {
        for (points, value) in points.iter_mut().zip([time, watts]) {
            let sane = value.filter(|value| gpus > 0 && value.is_finite() && *value > 0.0);
            points.extend(sane.map(|value| Point { gpus, value, on_curve }));
        }
    };
    for o in rows {
        let (gpus, c) = (count(o), &o.configuration);
        let on_curve = c.limit.is_none() && typical.is_of(gpus, c.nodes, o.batch);
        let watts = o.watts_per_gpu.map(|w| w.0 * f64::from(gpus));
        take(gpus, on_curve, o.epoch.map(|s| s.0), watts);
    }
    for g in profile.given.iter().filter(|g| g.gpu_type == *gpu_type) {
        let on_curve = typical.is_of(g.gpus.0, g.nodes.unwrap_or(1), None);
        take(g.gpus.0, on_curve, g.epoch.map(|s| s.0), g.power.map(|w| w.0));
    }
    let most = points.iter().flatten().map(|p| p.gpus).max().unwrap_or(1).clamp(8, 4096);
    // Steps that look alike on the axis, and where something was measured.
    let next = |gpus: &u32| (*gpus < most).then(|| (gpus + (gpus / 8).max(1)).min(most));
    let measured = points.iter().flatten().map(|p| p.gpus).filter(|gpus| *gpus <= most);
    let counts: BTreeSet<u32> = std::iter::successors(Some(1), next).chain(measured).collect();
    let query = |gpus: &u32| Query {
        configuration: Configuration {
            gpu_type: gpu_type.clone(),
            nodes: typical.nodes(*gpus),
            gpus_per_node: GpuCount(gpus.div_ceil(typical.nodes(*gpus))),
            limit: None,
        },
        gpus: Some(GpuCount(*gpus)),
        batch: typical.batch(*gpus),
    };
    let queries: Vec<Query> = counts.iter().map(query).collect();
    let answers = predictor.answer(profile, None, &queries);
    let name = match typical.text() {
        Some(batch) => format!("{gpu_type}, batch {batch}"),
        None => gpu_type.to_string(),
    };
    let curve = |of: fn(&Prediction) -> [f64; 3]| {
        counts.iter().copied().zip(answers.iter().map(of)).collect::<Vec<(u32, [f64; 3])>>()
    };
    let times = curve(|p| [p.epoch.median, p.epoch.low(), p.epoch.high()]);
    let watts = curve(|p| [p.power.median, p.power.low(), p.power.high()]);
    let [seen, metered] = points;
    [
        Series { name: name.clone(), curve: times, points: seen },
        Series { name, curve: watts, points: metered },
    ]
}
