//! The configuration of a kube-scheduler, made fit to run as a plain process.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// Which configuration a scheduler runs with.
#[derive(Debug, Clone, Default)]
pub enum SchedulerConfig {
    /// kube-scheduler's own defaults.
    #[default]
    Default,
    /// A `KubeSchedulerConfiguration`, such as the chart's rendered one.
    Inline(Value),
}

/// A scheduler configuration could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerConfigError {
    /// It is not a `KubeSchedulerConfiguration`.
    #[error("the scheduler configuration is of kind {0}, not KubeSchedulerConfiguration")]
    Kind(String),
    /// The file for the process could not be written.
    #[error("cannot write {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl SchedulerConfig {
    /// The configuration with the two things that differ between a pod and a plain process put right: the kubeconfig
    /// it speaks with, and no leader election (there is one instance). Everything else stays as given.
    fn render(&self, kubeconfig: &Path) -> Result<String, SchedulerConfigError> {
        let mut config = match self {
            Self::Default => json!({
                "apiVersion": "kubescheduler.config.k8s.io/v1",
                "kind": "KubeSchedulerConfiguration",
                "clientConnection": {"qps": 500, "burst": 1000},
            }),
            Self::Inline(value) => value.clone(),
        };
        if config["kind"] != "KubeSchedulerConfiguration" {
            return Err(SchedulerConfigError::Kind(config["kind"].to_string()));
        }
        if !config["clientConnection"].is_object() {
            config["clientConnection"] = json!({});
        }
        config["clientConnection"]["kubeconfig"] = json!(kubeconfig);
        config["leaderElection"] = json!({"leaderElect": false});
        // JSON is YAML.
        Ok(format!("{config:#}\n"))
    }

    /// Writes it as a plain process reads it, which speaks with this kubeconfig.
    pub(crate) fn write(&self, path: &Path, kubeconfig: &Path) -> Result<(), SchedulerConfigError> {
        let text = self.render(kubeconfig)?;
        std::fs::write(path, text)
            .map_err(|source| SchedulerConfigError::Write { path: path.to_owned(), source })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charts_configuration_keeps_its_profile_and_loses_its_leader_election() {
        let chart = SchedulerConfig::Inline(json!({
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": true, "resourceName": "andreas-scheduler"},
            "profiles": [{"schedulerName": "andreas"}],
        }));
        let rendered: Value = serde_json::from_str(&chart.render(Path::new("/k")).unwrap()).unwrap();
        assert_eq!(rendered["leaderElection"], json!({"leaderElect": false}));
        assert_eq!(rendered["clientConnection"]["kubeconfig"], "/k");
        assert_eq!(rendered["profiles"][0]["schedulerName"], "andreas");
    }

    #[test]
    fn another_kind_is_refused() {
        let error =
            SchedulerConfig::Inline(json!({"kind": "ConfigMap"})).render(Path::new("/k")).unwrap_err();
        assert!(matches!(error, SchedulerConfigError::Kind(kind) if kind.contains("ConfigMap")));
    }
}
