//! Time and power of models by GPU type and number of GPUs.

use std::collections::BTreeMap;
use std::path::Path;

use andreas_model::stable_hash;
use serde::Deserialize;

use super::ReadError;
use super::table::open;

/// Values by GPU type and total number of GPUs.
pub type Table = BTreeMap<String, BTreeMap<u32, f64>>;

/// A model at one batch size.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ModelVariant {
    /// Model.
    pub model: String,
    /// Batch over all GPUs.
    #[serde(default)]
    pub batch: Option<u32>,
    /// Seconds per unit of work; only ratios matter.
    #[serde(rename = "seconds_per_epoch")]
    pub seconds: Table,
    /// Watts of all GPUs together.
    #[serde(default)]
    pub watts: Table,
    /// Power limits by GPU type: watts per GPU, time factor, power factor.
    #[serde(default)]
    pub limits: BTreeMap<String, Vec<(f64, f64, f64)>>,
}

/// All known models.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ModelTables {
    /// By name: `resnet50-b128`, or `resnet50`.
    pub families: BTreeMap<String, ModelVariant>,
}

impl ModelTables {
    /// Reads a table in our own JSON: `{"families": {name: {"model", "batch", "seconds_per_epoch": {type:
    /// {gpus: s}}, "watts": ...}}}`.
    ///
    /// # Errors
    /// [`ReadError`] with the path of the field.
    pub fn read(file: &Path) -> Result<Self, ReadError> {
        let mut decoder = serde_json::Deserializer::from_reader(open(file)?);
        let tables: Self = serde_path_to_error::deserialize(&mut decoder)
            .map_err(|e| ReadError::bad(file, e.path().to_string(), e.inner().to_string()))?;
        for (name, variant) in &tables.families {
            for (kind, rows) in &variant.seconds {
                if let Some((gpus, _)) = rows.iter().find(|(g, s)| **g == 0 || !(**s > 0.0 && s.is_finite()))
                {
                    let at = format!("families.{name}.seconds_per_epoch.{kind}.{gpus}");
                    return Err(ReadError::bad(file, at, "must be at least one GPU and above 0 s"));
                }
            }
        }
        Ok(tables)
    }

    /// The variant of a model and batch: the exact batch, else the nearest. An unknown model gets one chosen
    /// by its name.
    pub fn find(&self, model: Option<&str>, batch: Option<u32>, id: &str) -> Option<&ModelVariant> {
        let same: Vec<&ModelVariant> =
            self.families.values().filter(|f| model == Some(f.model.as_str())).collect();
        let distance = |f: &&&ModelVariant| f.batch.unwrap_or(0).abs_diff(batch.unwrap_or(0));
        if let Some(variant) = same.iter().min_by_key(distance) {
            return Some(variant);
        }
        let count = self.families.len().max(1) as u64;
        self.families.values().nth(usize::try_from(stable_hash(id) % count).unwrap_or(0))
    }
}
