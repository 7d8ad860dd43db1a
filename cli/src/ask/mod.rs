//! Questions to the operator: `queue`, `explain`, `whatif`, `can`.
//!
//! **Flows**: flags and manifests in, one request to the query API ([`transport`]), text, JSON or YAML out. The types are those of
//! `andreas_api::query`. **Never here**: a forecast or a cost; the operator computes them.

mod can;
mod explain;
mod job_file;
mod queue;
mod svg;
mod text;
pub(crate) mod timeline;
pub(crate) mod transport;
mod what_if;

use clap::Args;

pub use can::{CanArgs, run as can};
pub use explain::{ExplainArgs, run as explain};
pub use queue::{QueueArgs, run as queue};
pub use what_if::{WhatIfArgs, run as what_if};

use crate::cluster::ConnectArgs;
use crate::exit::Usage;
use crate::name;

/// Flags of every question.
#[derive(Clone, Debug, Args)]
pub struct AskArgs {
    /// Namespace that is asked about; that of the context without
    #[arg(long, short, value_name = "NAME", help_heading = "Cluster", value_parser = name::namespace)]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: ConnectArgs,
    /// Namespace of the operator
    #[arg(long, value_name = "NAME", default_value = "andreas-system", help_heading = "Operator", value_parser = name::namespace)]
    operator_namespace: String,
    /// Service of the operator
    #[arg(long, value_name = "NAME", default_value = "andreas-operator", help_heading = "Operator", value_parser = name::object)]
    operator_service: String,
    /// Port of that Service, and of the operator's pods, with certificates
    #[arg(long, value_name = "PORT", default_value_t = 8443, help_heading = "Operator")]
    operator_port: u16,
    /// Service account of the namespace to ask as, if the kubeconfig has a client certificate and no token
    #[arg(long, value_name = "NAME", help_heading = "Operator", value_parser = name::object)]
    service_account: Option<String>,
}

impl AskArgs {
    /// The same about the namespace of a manifest, as `kubectl apply` takes it.
    ///
    /// # Errors
    /// When the flag names another one.
    fn of_manifest(&self, namespace: Option<String>) -> Result<Self, Usage> {
        match (&self.namespace, namespace) {
            (Some(flag), Some(own)) if *flag != own => {
                Err(Usage(format!("-n {flag}: the manifest is of namespace {own}")))
            }
            (None, own) => Ok(Self { namespace: own, ..self.clone() }),
            _ => Ok(self.clone()),
        }
    }
}
