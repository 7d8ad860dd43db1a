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
    pub fn new<K: Resource<DynamicType = ()>>(verb: &'static str, namespace: Option<&str>) -> Self {
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

    /// The resource with its group, and the subresource.
    fn parts(&self) -> (String, Option<&str>) {
        let (resource, subresource) = match self.resource.split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (self.resource.as_str(), None),
        };
        let name = match self.group.as_str() {
            "" => resource.to_owned(),
            group => format!("{resource}.{group}"),
        };
        (name, subresource)
    }

    /// The resource as roles name it: `trainingjobs.andreas.dev`, `pods/log`.
    pub fn resource_name(&self) -> String {
        match self.parts() {
            (name, Some(subresource)) => format!("{name}/{subresource}"),
            (name, None) => name,
        }
    }

    /// The command that asks the API server for it. kubectl takes what follows a `/` for the name of an object.
    pub fn question(&self) -> String {
        let (name, subresource) = self.parts();
        let subresource = subresource.map(|part| format!(" --subresource={part}")).unwrap_or_default();
        let scope = match &self.namespace {
            Some(namespace) => format!("-n {namespace}"),
            None => "-A".to_owned(),
        };
        format!("kubectl auth can-i {} {name}{subresource} {scope}", self.verb)
    }

    /// Which role grants it, as the chart and Kubernetes ship them.
    pub fn granted_by(&self) -> &'static str {
        let reads = matches!(self.verb, "get" | "list" | "watch");
        match (self.group.as_str(), self.resource.as_str()) {
            (andreas_api::names::GROUP, "gpunodes" | "energypolicies" | "nodepowers") => {
                "the chart's ClusterRole andreas-power-admin"
            }
            (_, "nodes" | "namespaces" | "customresourcedefinitions" | "leases") => {
                "a cluster administrator's role"
            }
            (_, "services/proxy") => "the chart's value operator.query.proxyFor",
            // `edit` has it too, with the Secrets of the namespace.
            (_, "pods/portforward") => "a Role of that namespace with this right alone",
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
    use k8s_openapi::api::core::v1::{Pod, Service};

    use super::*;

    #[test]
    fn a_right_is_written_as_kubectl_writes_it() {
        let list = Right::new::<TrainingJob>("list", Some("team-a"));
        assert_eq!(list.to_string(), "list trainingjobs.andreas.dev in namespace team-a");
        assert_eq!(list.question(), "kubectl auth can-i list trainingjobs.andreas.dev -n team-a");
        assert!(list.granted_by().contains("view"));
        let log = Right::new::<Pod>("get", Some("team-a")).on("log");
        assert_eq!(log.resource_name(), "pods/log");
        assert_eq!(log.question(), "kubectl auth can-i get pods --subresource=log -n team-a");
        let status = Right::new::<TrainingJob>("patch", None).on("status");
        assert_eq!(status.resource_name(), "trainingjobs.andreas.dev/status");
        assert_eq!(
            status.question(),
            "kubectl auth can-i patch trainingjobs.andreas.dev --subresource=status -A"
        );
        let nodes = Right::new::<GpuNode>("list", None);
        assert_eq!(nodes.to_string(), "list gpunodes.andreas.dev in the whole cluster");
        assert!(nodes.granted_by().contains("power-admin"));
    }

    /// The ClusterRole view has neither, and edit also reads the Secrets of the operator's namespace.
    #[test]
    fn rights_to_reach_the_operator_are_granted_alone() {
        for verb in ["get", "create"] {
            let proxy = Right::new::<Service>(verb, Some("andreas-system")).on("proxy");
            assert!(proxy.granted_by().ends_with("operator.query.proxyFor"), "{verb}");
            let forward = Right::new::<Pod>(verb, Some("andreas-system")).on("portforward");
            assert!(forward.granted_by().starts_with("a Role of that namespace"), "{verb}");
        }
    }
}
