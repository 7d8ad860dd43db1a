//! The sources of a cluster file's [`ModelTables`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::ReadError;
use super::models::{ModelTables, ModelVariant};

/// One source named in a cluster file. Paths are relative to that file.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "format", rename_all = "lowercase", deny_unknown_fields)]
pub enum Source {
    /// Our own JSON.
    Own {
        /// File.
        file: PathBuf,
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
