//! Readers of published tables of training speed and power, for [`ModelTables`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ReadError;
use super::models::{ModelTables, ModelVariant};
use super::table::{in_folder, rows};

/// One table named in a cluster file. Paths are relative to that file.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "format", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Our own JSON.
    Own {
        /// File.
        file: PathBuf,
    },
    /// ElasticFlow: a folder with a CSV per model; rows are batches, columns GPUs, cells iterations per second.
    Elasticflow {
        /// Folder.
        folder: PathBuf,
        /// GPU type that was measured.
        gpu_type: String,
    },
    /// Gavel: one CSV; only jobs running alone on one server are used.
    Gavel {
        /// File.
        file: PathBuf,
        /// Our name of each GPU type there (`k80`, `p100`, `v100`).
        types: BTreeMap<String, String>,
    },
    /// Pollux: a folder per model with `scalability.csv`. The best local batch for each number of GPUs is
    /// used.
    Pollux {
        /// Folder.
        folder: PathBuf,
        /// GPU type that was measured.
        gpu_type: String,
    },
    /// Zeus: watts of one GPU and the effect of power limits. Adds to families of the other sources, without
    /// times, because its epochs are of other data.
    Zeus {
        /// File.
        file: PathBuf,
        /// GPU type that was measured.
        gpu_type: String,
        /// Our model for each of its networks.
        models: BTreeMap<String, String>,
    },
    /// A type without a table, by relative speed to another type. Time that does not shrink with more GPUs is
    /// equal on both.
    Relative {
        /// The type without table.
        gpu_type: String,
        /// The type with one.
        to: String,
        /// Relative speed.
        speed: f64,
        /// Relative speed of some models.
        #[serde(default)]
        models: BTreeMap<String, f64>,
    },
}

/// Reads all sources in order.
///
/// # Errors
/// [`ReadError`] of the first source that cannot be read or is invalid.
pub fn read(sources: &[Source], base: &Path) -> Result<ModelTables, ReadError> {
    let mut tables = ModelTables::default();
    for source in sources {
        match source {
            Source::Own { file } => merge(&mut tables, ModelTables::read(&base.join(file))?),
            Source::Elasticflow { folder, gpu_type } => {
                elasticflow(&base.join(folder), gpu_type, &mut tables)?
            }
            Source::Gavel { file, types } => gavel(&base.join(file), types, &mut tables)?,
            Source::Pollux { folder, gpu_type } => pollux(&base.join(folder), gpu_type, &mut tables)?,
            Source::Zeus { file, gpu_type, models } => zeus(&base.join(file), gpu_type, models, &mut tables)?,
            Source::Relative { gpu_type, to, speed, models } => {
                relative(gpu_type, to, *speed, models, &mut tables)
            }
        }
    }
    Ok(tables)
}

fn merge(tables: &mut ModelTables, more: ModelTables) {
    for (name, variant) in more.families {
        let known = tables
            .families
            .entry(name)
            .or_insert_with(|| ModelVariant { seconds: BTreeMap::new(), ..variant.clone() });
        known.seconds.extend(variant.seconds);
        known.watts.extend(variant.watts);
        known.limits.extend(variant.limits);
    }
}

/// Keeps the smallest seconds per epoch of a configuration.
fn insert_fastest(
    tables: &mut ModelTables,
    model: &str,
    batch: Option<u32>,
    gpu_type: &str,
    gpus: u32,
    seconds: f64,
) {
    let name = batch.map_or_else(|| model.to_owned(), |b| format!("{model}-b{b}"));
    let variant = tables.families.entry(name).or_insert_with(|| ModelVariant {
        model: model.to_owned(),
        batch,
        ..ModelVariant::default()
    });
    let cell = variant.seconds.entry(gpu_type.to_owned()).or_default().entry(gpus).or_insert(seconds);
    *cell = cell.min(seconds);
}

fn files(folder: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let io = |source| ReadError::Io { file: folder.to_owned(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        files.push(entry.map_err(io)?.path());
    }
    files.sort();
    Ok(files)
}

fn elasticflow(folder: &Path, kind: &str, tables: &mut ModelTables) -> Result<(), ReadError> {
    for file in files(folder)?.iter().filter(|f| f.extension().is_some_and(|e| e == "csv")) {
        let model = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for (i, row) in rows::<BTreeMap<String, String>>(file)?.iter().enumerate() {
            let batch = row.get("global_batch_size").and_then(|b| b.parse::<f64>().ok());
            let Some(batch) = batch else {
                return Err(ReadError::bad(
                    file,
                    format!("row {}, global_batch_size", i + 1),
                    "is not a number",
                ));
            };
            for (column, cell) in row {
                let (Ok(gpus), Ok(speed)) = (column.parse::<u32>(), cell.parse::<f64>()) else { continue };
                // 0, empty and nan mark an impossible configuration.
                if speed > 0.0 && speed.is_finite() && gpus > 0 {
                    insert_fastest(tables, &model, Some(batch as u32), kind, gpus, 1.0 / speed);
                }
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct GavelRow {
    gpu_type: String,
    placement: String,
    model: String,
    n_gpus: u32,
    packed_with_model: String,
    steps_per_s: f64,
}

fn gavel(file: &Path, types: &BTreeMap<String, String>, tables: &mut ModelTables) -> Result<(), ReadError> {
    for row in rows::<GavelRow>(file)? {
        let Some(kind) = types.get(&row.gpu_type) else { continue };
        if row.placement != "consolidated" || !row.packed_with_model.is_empty() || row.steps_per_s <= 0.0 {
            continue;
        }
        // "ResNet-18 (batch size 16)"
        let (model, batch) = row.model.split_once(" (batch size ").unwrap_or((&row.model, ""));
        let batch = batch.trim_end_matches(')').parse().ok();
        insert_fastest(tables, model, batch, kind, row.n_gpus, 1.0 / row.steps_per_s);
    }
    Ok(())
}

#[derive(Deserialize)]
struct PolluxRow {
    num_replicas: u32,
    local_bsz: f64,
    step_time: f64,
}

fn pollux(folder: &Path, kind: &str, tables: &mut ModelTables) -> Result<(), ReadError> {
    for model in files(folder)?.iter().filter(|f| f.is_dir()) {
        let file = in_folder(model, "scalability.csv");
        if !file.exists() {
            continue;
        }
        let name = model.file_name().unwrap_or_default().to_string_lossy().into_owned();
        for row in rows::<PolluxRow>(&file)? {
            let samples = f64::from(row.num_replicas) * row.local_bsz;
            if samples > 0.0 && row.step_time > 0.0 {
                insert_fastest(tables, &name, None, kind, row.num_replicas, row.step_time / samples);
            }
        }
    }
    Ok(())
}

#[derive(Deserialize)]
struct ZeusRow {
    network: String,
    batch_size: u32,
    optimizer: String,
    power_limit: f64,
    time_per_epoch: f64,
    average_power: f64,
}

fn zeus(
    file: &Path,
    kind: &str,
    models: &BTreeMap<String, String>,
    tables: &mut ModelTables,
) -> Result<(), ReadError> {
    let mut runs: BTreeMap<(String, u32, String), Vec<ZeusRow>> = BTreeMap::new();
    for row in rows::<ZeusRow>(file)? {
        let Some(model) = models.get(&row.network) else { continue };
        runs.entry((model.clone(), row.batch_size, row.optimizer.clone())).or_default().push(row);
    }
    // Each figure is the median over the batches and optimizers of a model.
    let mut full: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    let mut effects: BTreeMap<(&str, u64), Vec<(f64, f64)>> = BTreeMap::new();
    for ((model, ..), run) in &mut runs {
        run.sort_by(|a, b| a.power_limit.total_cmp(&b.power_limit));
        let Some(top) = run.last() else { continue };
        full.entry(model).or_default().push(top.average_power);
        for row in run.iter().filter(|r| r.power_limit < top.power_limit) {
            let factors = (row.time_per_epoch / top.time_per_epoch, row.average_power / top.average_power);
            effects.entry((model, row.power_limit as u64)).or_default().push(factors);
        }
    }
    for variant in tables.families.values_mut() {
        let Some(watts) = full.get_mut(variant.model.as_str()).map(|values| median(values)) else { continue };
        let counts: Vec<u32> =
            variant.seconds.get(kind).map(|t| t.keys().copied().collect()).unwrap_or_default();
        variant
            .watts
            .insert(kind.to_owned(), counts.into_iter().map(|g| (g, watts * f64::from(g))).collect());
        let of_model = effects.iter().filter(|((model, _), _)| *model == variant.model);
        let rows = of_model.map(|((_, limit), factors)| {
            let (mut time, mut power): (Vec<f64>, Vec<f64>) = factors.iter().copied().unzip();
            // A limit never makes a job faster; such a measurement is noise.
            (*limit as f64, median(&mut time).max(1.0), median(&mut power).min(1.0))
        });
        variant.limits.insert(kind.to_owned(), rows.collect());
    }
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(1.0)
}

fn relative(kind: &str, to: &str, speed: f64, models: &BTreeMap<String, f64>, tables: &mut ModelTables) {
    for variant in tables.families.values_mut() {
        let speed = models.get(&variant.model).copied().unwrap_or(speed);
        let Some(known) = variant.seconds.get(to).filter(|_| speed > 0.0) else { continue };
        let Some(one) = known.get(&1).copied() else { continue };
        let times = known.iter().map(|(gpus, time)| {
            let fixed = (time - one / f64::from(*gpus)).max(0.0);
            (*gpus, one / speed / f64::from(*gpus) + fixed)
        });
        let times = times.collect();
        variant.seconds.insert(kind.to_owned(), times);
    }
}
