//! Instances of the published ANDREAS simulator: a folder with `Lof_Selectjobs.csv`, `SelectJobs_times.csv`,
//! `tNodes.csv` and `GPU-costs.csv` (generator and formats:
//! <https://github.com/ai-sprint-eu-project/GPUScheduler>, Apache-2.0).
//!
//! Times are of whole jobs, so a job has one epoch. The catalogue gives the cost of a node by its GPUs in
//! use. The "watts" below are money per hour, so methods that plan by watts use the same costs. They come
//! from an affine line through the catalogue, exact to its rounding.

use std::collections::BTreeMap;
use std::path::Path;

use andreas_baselines::Tickets;
use andreas_model::{CostRate, EnergyPrice, GpuCount, GpuType, Seconds, StepFunction, Time, Watts};
use andreas_planner::{DEFAULT_WEAR, Estimate, GpuTypeInfo, Job, Lateness, Node};
use serde::Deserialize;

use super::ReadError;
use super::table::{in_folder, rows};
use crate::scenario::{Delays, Scenario, SleepModel};

#[derive(Deserialize)]
struct JobRow {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "SubmissionTime")]
    submit: f64,
    #[serde(rename = "Deadline")]
    deadline: f64,
    #[serde(rename = "TardinessWeight")]
    weight: f64,
}

#[derive(Deserialize)]
struct TimeRow {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "GPUtype")]
    kind: String,
    #[serde(rename = "nGPUs")]
    gpus: u32,
    #[serde(rename = "ExecutionTime")]
    time: f64,
}

#[derive(Deserialize)]
struct NodeRow {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "GPUtype")]
    kind: String,
    #[serde(rename = "nGPUs")]
    gpus: u32,
}

#[derive(Deserialize)]
struct CostRow {
    #[serde(rename = "GPUtype")]
    kind: String,
    #[serde(rename = "nGPUs")]
    gpus: u32,
    cost: f64,
}

/// Reads the folder of an instance. `restart` is 0 in the original.
///
/// # Errors
/// [`ReadError`], with file, row and column.
pub fn read(folder: &Path, restart: Seconds) -> Result<Scenario, ReadError> {
    let catalogue = catalogue(&in_folder(folder, "GPU-costs.csv"))?;
    // Money per hour of the first GPU and of each further one.
    let lines: BTreeMap<&GpuType, (f64, f64)> = catalogue.iter().map(|(k, r)| (k, affine(r))).collect();
    let mut times: BTreeMap<String, Vec<Estimate>> = BTreeMap::new();
    let file = in_folder(folder, "SelectJobs_times.csv");
    for row in rows::<TimeRow>(&file)? {
        let kind = GpuType::from(row.kind);
        let Some((_, slope)) = lines.get(&kind) else {
            return Err(ReadError::bad(
                &file,
                format!("job {}", row.id),
                format!("GPU-costs.csv has no {kind}"),
            ));
        };
        times.entry(row.id).or_default().push(Estimate::new(
            kind,
            GpuCount(row.gpus),
            Seconds(row.time),
            Watts(slope * f64::from(row.gpus)),
        ));
    }
    let file = in_folder(folder, "Lof_Selectjobs.csv");
    let mut jobs = Vec::new();
    for row in rows::<JobRow>(&file)? {
        let Some(table) = times.remove(&row.id) else {
            return Err(ReadError::bad(
                &file,
                format!("job {}", row.id),
                "SelectJobs_times.csv has no such job",
            ));
        };
        jobs.push(job(row, table));
    }
    let nodes: Vec<Node> = rows::<NodeRow>(&in_folder(folder, "tNodes.csv"))?
        .into_iter()
        .map(|row| {
            let gpu_type = GpuType::from(row.kind);
            let overhead = lines.get(&gpu_type).map_or(0.0, |(base, _)| *base);
            Node { host_busy: Watts(overhead), ..Node::new(row.id.into(), gpu_type, GpuCount(row.gpus)) }
        })
        .collect();
    let name = folder.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    let scenario = Scenario {
        tickets: Tickets::default(),
        name,
        gpu_types: lines
            .iter()
            .map(|(kind, (_, slope))| GpuTypeInfo {
                name: (*kind).clone(),
                idle: Watts::ZERO,
                max: Watts(*slope),
            })
            .collect(),
        nodes,
        // A "watt" is money per hour.
        tariff: StepFunction::flat(EnergyPrice(1.0 / 3600.0)),
        budget: None,
        lateness: Lateness::default(),
        restart,
        wear: DEFAULT_WEAR,
        checkpoint: Seconds::ZERO,
        tick: None,
        catalogue: Some(catalogue),
        delays: Delays::default(),
        sleep: SleepModel::default(),
        window: None,
        programs: BTreeMap::new(),
        unfinished: BTreeMap::new(),
        failures: Vec::new(),
        jobs,
        features: BTreeMap::new(),
    };
    Ok(scenario.sorted())
}

fn catalogue(file: &Path) -> Result<BTreeMap<GpuType, Vec<CostRate>>, ReadError> {
    let mut catalogue: BTreeMap<GpuType, Vec<CostRate>> = BTreeMap::new();
    for (i, row) in rows::<CostRow>(file)?.into_iter().enumerate() {
        let rates = catalogue.entry(row.kind.into()).or_default();
        if row.gpus as usize != rates.len() + 1 {
            return Err(ReadError::bad(
                file,
                format!("row {}, nGPUs", i + 1),
                "counts must go 1, 2, 3, ... for each type",
            ));
        }
        rates.push(CostRate(row.cost / 3600.0));
    }
    Ok(catalogue)
}

/// Base and slope per hour of the line through the first and the last entry.
fn affine(rates: &[CostRate]) -> (f64, f64) {
    match rates {
        [] => (0.0, 0.0),
        [one] => (0.0, one.0 * 3600.0),
        [first, .., last] => {
            let slope = (last.0 - first.0) * 3600.0 / (rates.len() - 1) as f64;
            ((first.0 * 3600.0 - slope).max(0.0), slope)
        }
    }
}

fn job(row: JobRow, table: Vec<Estimate>) -> Job {
    Job {
        deadline: Some(Time(row.deadline)),
        ..Job::new(row.id.into(), "trace".into(), Time(row.submit), CostRate(row.weight), 1.0, table.into())
    }
}
