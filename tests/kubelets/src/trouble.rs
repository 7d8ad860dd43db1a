//! What can be set wrong on a node while it runs: its network plug-in, the memory that its kubelet wants free.

use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::config::CNI;
use crate::node::{Node, Service};

/// The state of a node's network plug-in.
#[derive(Clone, Copy, Debug)]
pub enum Cni {
    /// As it was at first.
    Whole,
    /// It has no configuration, as before a cluster's network add-on is installed: the node is not Ready.
    Absent,
    /// It is configured and fails: the node is Ready, and no pod can start.
    Failing,
}

impl Node {
    /// Breaks the network plug-in, or mends it. Pods that run keep their network.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub fn set_cni(&self, cni: Cni) -> Result<()> {
        let file = self.folder().join(CNI);
        let aside = file.with_extension("aside");
        if !aside.exists() {
            std::fs::copy(&file, &aside).with_context(|| file.display().to_string())?;
        }
        match cni {
            Cni::Whole => std::fs::rename(&aside, &file)?,
            Cni::Absent => std::fs::remove_file(&file)?,
            Cni::Failing => change(&file, |list| list["plugins"][0]["type"] = json!("no-such-plugin"))?,
        }
        Ok(())
    }

    /// Restarts the kubelet with another limit: it evicts pods when less memory is free.
    ///
    /// # Errors
    /// When its configuration cannot be written, or it does not end.
    pub async fn evict_below(&self, free_mib: u64) -> Result<()> {
        let limit = format!("{free_mib}Mi");
        change(&self.folder().join("kubelet.yaml"), |config| {
            config["evictionHard"]["memory.available"] = json!(limit);
        })?;
        self.restart_service(Service::Kubelet).await
    }
}

/// Changes a file of JSON.
fn change(file: &Path, how: impl FnOnce(&mut Value)) -> Result<()> {
    let mut value =
        serde_json::from_slice(&std::fs::read(file)?).with_context(|| file.display().to_string())?;
    how(&mut value);
    std::fs::write(file, format!("{value:#}\n")).with_context(|| file.display().to_string())
}
