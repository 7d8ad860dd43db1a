//! Services and their endpoints: what `/etc/hosts` says inside, and where Service addresses lead.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use crate::config::Forward;
use crate::objects::{ServiceView, SliceView};

/// The cluster's domain in full names.
const DOMAIN: &str = "cluster.local";

/// (namespace, name)
type Key = (String, String);

/// All Services and EndpointSlices, as last seen.
#[derive(Default)]
pub(crate) struct Cluster {
    services: BTreeMap<Key, ServiceView>,
    slices: BTreeMap<Key, SliceView>,
    /// Where the API server is on the machine: what the Service `kubernetes` of `default` leads to, for a test bed's has
    /// no endpoints (they must not be loopback addresses).
    pub api_server: Option<SocketAddr>,
    /// Forwards of the configuration and of the control socket, by the address inside.
    pub forwards: BTreeMap<SocketAddr, Forward>,
}

/// Where connections to an address inside go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// A place on the machine.
    Machine(SocketAddr),
    /// Any ready endpoint of a Service's port.
    Service { namespace: String, name: String, port: String },
}

fn key(metadata: &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta) -> Key {
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

impl Cluster {
    pub fn apply_service(&mut self, service: ServiceView) {
        self.services.insert(key(&service.metadata), service);
    }
    pub fn delete_service(&mut self, service: &ServiceView) {
        self.services.remove(&key(&service.metadata));
    }
    pub fn apply_slice(&mut self, slice: SliceView) {
        self.slices.insert(key(&slice.metadata), slice);
    }
    pub fn delete_slice(&mut self, slice: &SliceView) {
        self.slices.remove(&key(&slice.metadata));
    }
    /// Keeps only what a new list has shown.
    pub fn retain_services(&mut self, seen: &[ServiceView]) {
        let seen: Vec<Key> = seen.iter().map(|service| key(&service.metadata)).collect();
        self.services.retain(|key, _| seen.contains(key));
    }
    /// Keeps only what a new list has shown.
    pub fn retain_slices(&mut self, seen: &[SliceView]) {
        let seen: Vec<Key> = seen.iter().map(|slice| key(&slice.metadata)).collect();
        self.slices.retain(|key, _| seen.contains(key));
    }

    fn slices_of<'a>(&'a self, namespace: &'a str, service: &'a str) -> impl Iterator<Item = &'a SliceView> {
        self.slices.values().filter(move |slice| {
            let labels = slice.metadata.labels.as_ref();
            slice.metadata.namespace.as_deref() == Some(namespace)
                && labels.and_then(|labels| labels.get("kubernetes.io/service-name")).map(String::as_str)
                    == Some(service)
        })
    }

    /// Names every pod of a namespace sees: forwards, Services, and the named endpoints of headless Services.
    /// Ready endpoints only, which with `publishNotReadyAddresses` are all.
    pub fn hosts(&self, namespace: &str) -> String {
        let mut text = String::new();
        for forward in self.forwards.values().filter(|forward| !forward.names.is_empty()) {
            let _ = writeln!(text, "{}\t{}", forward.listen.ip(), forward.names.join(" "));
        }
        for ((of, name), service) in &self.services {
            let short = if of == namespace { format!(" {name}") } else { String::new() };
            if service.spec.cluster_ip.parse::<Ipv4Addr>().is_ok() {
                let full = format!("{name}.{of}.svc.{DOMAIN} {name}.{of}.svc {name}.{of}{short}");
                let _ = writeln!(text, "{}\t{full}", service.spec.cluster_ip);
                continue;
            }
            let endpoints = self.slices_of(of, name).flat_map(|slice| slice.endpoints.iter().flatten());
            for endpoint in endpoints.filter(|endpoint| endpoint.conditions.ready != Some(false)) {
                let Some(address) = endpoint.addresses.first() else { continue };
                let own = endpoint.hostname.iter().map(|host| format!("{host}.{name}"));
                for label in own.chain([name.clone()]) {
                    let short = if of == namespace { format!(" {label}") } else { String::new() };
                    let _ = writeln!(
                        text,
                        "{address}\t{label}.{of}.svc.{DOMAIN} {label}.{of}.svc {label}.{of}{short}"
                    );
                }
            }
        }
        text
    }

    /// Every address inside that must be listened on; forwards win over Services.
    pub fn listeners(&self) -> BTreeMap<SocketAddr, Target> {
        let mut wanted = BTreeMap::new();
        for ((namespace, name), service) in &self.services {
            let Ok(ip) = service.spec.cluster_ip.parse::<Ipv4Addr>() else { continue };
            for port in &service.spec.ports {
                if matches!(port.protocol.as_str(), "" | "TCP") {
                    let (namespace, name) = (namespace.clone(), name.clone());
                    let target = match self.api_server {
                        Some(machine) if namespace == "default" && name == "kubernetes" => {
                            Target::Machine(machine)
                        }
                        _ => Target::Service { namespace, name, port: port.name.clone() },
                    };
                    wanted.insert(SocketAddr::from((ip, port.port)), target);
                }
            }
        }
        wanted.extend(self.forwards.values().map(|forward| (forward.listen, Target::Machine(forward.to))));
        wanted
    }

    /// Ready endpoints of a Service's port.
    pub fn endpoints(&self, namespace: &str, service: &str, port: &str) -> Vec<SocketAddr> {
        let mut found = Vec::new();
        for slice in self.slices_of(namespace, service) {
            let ports = slice.ports.iter().flatten();
            let number =
                ports.filter(|one| one.name.as_deref().unwrap_or_default() == port).find_map(|one| one.port);
            let Some(number) = number else { continue };
            let ready =
                slice.endpoints.iter().flatten().filter(|endpoint| endpoint.conditions.ready != Some(false));
            let addresses = ready.flat_map(|endpoint| &endpoint.addresses);
            found.extend(addresses.filter_map(|ip| Some(SocketAddr::new(ip.parse().ok()?, number))));
        }
        found
    }

    /// Address of the API server's Service, which pods get in `KUBERNETES_SERVICE_HOST`.
    pub fn api_service(&self) -> Option<(String, u16)> {
        let service = self.services.get(&("default".to_owned(), "kubernetes".to_owned()))?;
        Some((service.spec.cluster_ip.clone(), service.spec.ports.first()?.port))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster() -> Cluster {
        let mut cluster = Cluster::default();
        let headless =
            json!({"metadata": {"name": "bert-gang-x", "namespace": "team"}, "spec": {"clusterIP": "None"}});
        let operator = json!({
            "metadata": {"name": "op", "namespace": "sys"},
            "spec": {"clusterIP": "10.96.0.9", "ports": [{"name": "https", "port": 443}, {"port": 53, "protocol": "UDP"}]},
        });
        for service in [headless, operator] {
            cluster.apply_service(serde_json::from_value(service).unwrap());
        }
        let members = json!({
            "metadata": {"name": "s1", "namespace": "team", "labels": {"kubernetes.io/service-name": "bert-gang-x"}},
            "endpoints": [
                {"addresses": ["10.244.0.2"], "hostname": "bert-1-0", "conditions": {"ready": true}},
                {"addresses": ["10.244.0.3"], "hostname": "bert-1-1", "conditions": {"ready": false}},
            ],
            "ports": null,
        });
        let servers = json!({
            "metadata": {"name": "s2", "namespace": "sys", "labels": {"kubernetes.io/service-name": "op"}},
            "endpoints": [{"addresses": ["10.244.0.4"], "conditions": {}}],
            "ports": [{"name": "https", "port": 8443}],
        });
        for slice in [members, servers] {
            cluster.apply_slice(serde_json::from_value(slice).unwrap());
        }
        cluster
    }

    #[test]
    fn gang_members_have_names_when_they_are_published() {
        let hosts = cluster().hosts("team");
        assert!(hosts.contains(
            "10.244.0.2\tbert-1-0.bert-gang-x.team.svc.cluster.local bert-1-0.bert-gang-x.team.svc "
        ));
        assert!(!hosts.contains("bert-1-1."), "not ready and not published");
        assert!(hosts.contains("10.96.0.9\top.sys.svc.cluster.local op.sys.svc op.sys\n"));
    }

    #[test]
    fn services_are_listened_on_and_forwards_win() {
        let mut cluster = cluster();
        let address: SocketAddr = "10.96.0.9:443".parse().unwrap();
        let service = Target::Service { namespace: "sys".into(), name: "op".into(), port: "https".into() };
        assert_eq!(cluster.listeners(), BTreeMap::from([(address, service)]));
        assert_eq!(cluster.endpoints("sys", "op", "https"), ["10.244.0.4:8443".parse().unwrap()]);
        let to: SocketAddr = "127.0.0.1:39443".parse().unwrap();
        cluster.forwards.insert(address, Forward { listen: address, to, names: vec!["op.sys.svc".into()] });
        assert_eq!(cluster.listeners()[&address], Target::Machine(to));
    }
}
