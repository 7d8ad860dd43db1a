//! Label sets and GPU resources as NVIDIA's and the clouds' programs write them, recorded in the folder `labels`: one file each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::file::{self, FileError};

/// What is recorded of one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Recorded {
    /// How the node was set up.
    pub setup: String,
    /// The GPU type as which ANDREAS is to plan it.
    pub planned: Option<String>,
    /// Why ANDREAS is to exclude it.
    pub excluded: Option<String>,
    /// It has no GPUs.
    #[serde(default)]
    pub ignored: bool,
    /// Its labels, beside those of every node.
    pub labels: BTreeMap<String, String>,
    /// Of its `status.capacity` what is about GPUs.
    pub capacity: BTreeMap<String, String>,
    /// Of its `status.allocatable` what is about GPUs.
    pub allocatable: BTreeMap<String, String>,
}

/// The folder with the files.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("labels")
}

impl Recorded {
    /// Reads the set of that name.
    ///
    /// # Errors
    /// When there is none, or its file is not as it should be.
    pub fn named(name: &str) -> Result<Self, FileError> {
        file::read(&folder().join(format!("{name}.yaml")))
    }

    /// Reads all of them, by name.
    ///
    /// # Errors
    /// When a file is not as it should be.
    pub fn all() -> Result<BTreeMap<String, Self>, FileError> {
        let path = folder();
        let files = std::fs::read_dir(&path).map_err(|source| FileError::Read { path, source })?;
        let names = files.filter_map(|file| {
            let name = file.ok()?.file_name().into_string().ok()?;
            Some(name.strip_suffix(".yaml")?.to_owned())
        });
        names.map(|name| Ok((name.clone(), Self::named(&name)?))).collect()
    }

    /// GPUs that its device plug-in offers as `nvidia.com/gpu`.
    pub(crate) fn gpus(&self) -> usize {
        self.capacity.get(crate::devices::GPU_RESOURCE).and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_set_says_what_is_to_become_of_its_node() {
        let all = Recorded::all().unwrap();
        // What people have: each way to set up a node is there, whatever else is.
        for set in [
            "gpu-operator-t4",
            "gpu-operator-l40s",
            "gpu-operator-a100",
            "gpu-operator-h100-all-disabled",
            "mig-single",
            "mig-mixed-some",
            "mig-mixed-all",
            "time-slicing-2",
            "time-slicing-4-renamed",
            "mps",
            "gfd-alone",
            "device-plugin-alone",
            "gke",
            "eks",
            "aks",
            "dra-only",
        ] {
            assert!(all.contains_key(set), "no recorded set {set}");
        }
        for (name, set) in all {
            let verdicts =
                u8::from(set.planned.is_some()) + u8::from(set.excluded.is_some()) + u8::from(set.ignored);
            assert_eq!(verdicts, 1, "{name}");
        }
    }
}
