//! Rights: what a request needs, and who can grant it.

use std::fmt;

use kube::Resource;

/// One verb on one resource, in a namespace or in the whole cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Right {
    /// `get`, `list`, `watch`, `create`, `patch`, `delete`.
    pub verb: &'static str,
    /// API group; empty for the core group.
    pub group: String,
    /// Plural name, with the subresource: `pods/log`.
    pub resource: String,
    /// Namespace; none for the whole cluster.
    pub namespace: Option<String>,
}

impl Right {
    /// The right to do `verb` to objects of `K`.
    pub fn of<K: Resource<DynamicType = ()>>(verb: &'static str, namespace: Option<&str>) -> Self {
        Self {
            verb,
            group: K::group(&()).into_owned(),
            resource: K::plural(&()).into_owned(),
            namespace: namespace.map(str::to_owned),
        }
    }

    /// The same verb on a subresource: `log`, `portforward`, `status`.
    #[must_use]
    pub fn on(mut self, subresource: &str) -> Self {
        self.resource = format!("{}/{subresource}", self.resource);
        self
    }

    /// The resource as kubectl writes it: `trainingjobs.andreas.dev`.
    pub fn resource_name(&self) -> String {
        match self.group.as_str() {
            "" => self.resource.clone(),
            group => match self.resource.split_once('/') {
                Some((resource, subresource)) => format!("{resource}.{group}/{subresource}"),
                None => format!("{}.{group}", self.resource),
            },
        }
    }

    /// The command that asks the API server for it.
    pub fn question(&self) -> String {
        let resource = self.resource_name();
        match &self.namespace {
            Some(namespace) => format!("kubectl auth can-i {} {resource} -n {namespace}", self.verb),
            None => format!("kubectl auth can-i {} {resource} -A", self.verb),
        }
    }

    /// Which role grants it, as the chart and Kubernetes ship them.
    pub fn granted_by(&self) -> &'static str {
        let reads = matches!(self.verb, "get" | "list" | "watch");
        match (self.group.as_str(), self.resource.as_str()) {
            (andreas_api::names::GROUP, "gpunodes" | "energypolicies") => {
                "the chart's ClusterRole andreas-power-admin"
            }
            (_, "nodes" | "namespaces" | "customresourcedefinitions" | "leases") => {
                "a cluster administrator's role"
            }
            _ if self.namespace.is_none() => "a ClusterRoleBinding to the ClusterRole view",
            (_, "serviceaccounts/token") => "the ClusterRole admin in that namespace",
            (_, "secrets") => "the ClusterRole edit in that namespace",
            _ if reads => "the ClusterRole view in that namespace",
            _ => "the ClusterRole edit in that namespace",
        }
    }
}

impl fmt::Display for Right {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource_name())?;
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => f.write_str(" in the whole cluster"),
        }
    }
}

#[cfg(test)]
mod tests {
    use andreas_api::{GpuNode, TrainingJob};
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn a_right_is_written_as_kubectl_writes_it() {
        let list = Right::of::<TrainingJob>("list", Some("team-a"));
        assert_eq!(list.to_string(), "list trainingjobs.andreas.dev in namespace team-a");
        assert_eq!(list.question(), "kubectl auth can-i list trainingjobs.andreas.dev -n team-a");
        assert!(list.granted_by().contains("view"));
        let log = Right::of::<Pod>("get", Some("team-a")).on("log");
        assert_eq!(log.resource_name(), "pods/log");
        let nodes = Right::of::<GpuNode>("list", None);
        assert_eq!(nodes.to_string(), "list gpunodes.andreas.dev in the whole cluster");
        assert!(nodes.granted_by().contains("power-admin"));
    }
}
