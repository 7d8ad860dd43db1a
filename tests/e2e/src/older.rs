//! A release before this one, built beside it: what an upgrade begins with.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

/// Tag of the images of [`Older`].
pub const BEFORE: &str = "before";

/// A release before this one: its chart, and its programs by names that none of this version has.
#[derive(Clone, Debug)]
pub struct Older {
    folder: PathBuf,
}

impl Older {
    /// The folder that `hack/build-release-of` printed, as `make long WHAT=upgrade` names it in `ANDREAS_RELEASE_BEFORE`.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Self> {
        let folder = std::env::var_os("ANDREAS_RELEASE_BEFORE");
        let folder =
            PathBuf::from(folder.context("ANDREAS_RELEASE_BEFORE is not set: run make long WHAT=upgrade")?);
        ensure!(folder.join(".complete").exists(), "{}: no release was built there", folder.display());
        Ok(Self { folder })
    }

    /// Its chart.
    pub fn chart(&self) -> PathBuf {
        self.folder.join("charts/andreas")
    }

    /// Its programs, each also as `<name>-before`.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("bin")
    }

    /// Values with which its chart runs its programs, not those of this version.
    pub fn values(&self) -> Value {
        let image = json!({"tag": BEFORE});
        // The chart names the setter's program; all others are their images' entry points.
        let path = format!("{}:/usr/bin:/bin", self.programs().display());
        json!({
            "operator": {"image": image}, "extender": {"image": image},
            "agent": {"image": image, "extraEnv": [{"name": "PATH", "value": path}]},
        })
    }

    /// As [`install::images`](crate::install::images), for its tag.
    pub fn images(&self) -> Vec<Value> {
        ["andreas-operator", "andreas-extender", "andreas-node-agent"]
            .map(|name| {
                let program = self.programs().join(format!("{name}-before"));
                json!({"image": format!("andreas/{name}:{BEFORE}"), "program": program})
            })
            .into()
    }
}
