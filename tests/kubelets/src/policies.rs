//! Enforces NetworkPolicies on the nodes: the definition of `networking.k8s.io/v1` as nftables rules. The bridge CNI plug-in enforces
//! none.
//!
//! Every node has the rules of all pods: what leaves a pod is judged on its node, what reaches one on the other, with the same result.
//! As in other implementations, a node reaches its own pods (the kubelet's probes), answers pass, and a pod that has no rules yet
//! reaches nothing: else what it sends first would pass. Rules with named ports are refused with an error, never ignored.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt as _};
use kube::runtime::reflector::{self, Store};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio::task::JoinSet;

use crate::network::Network;
use crate::node::Node;

/// Time between two looks at the objects.
const PERIOD: Duration = Duration::from_millis(200);
/// The table of nftables that holds the rules.
const TABLE: &str = "policies";

type Labels = BTreeMap<String, String>;

/// NetworkPolicies are in force; dropped, the rules that are in force stay and follow no change.
pub struct Enforcer {
    _tasks: JoinSet<()>,
}

impl Enforcer {
    pub(crate) fn start(client: &Client, nodes: &[Arc<Node>]) -> Self {
        let mut tasks = JoinSet::new();
        let pods = follow(Api::<Pod>::all(client.clone()), &mut tasks);
        let namespaces = follow(Api::<Namespace>::all(client.clone()), &mut tasks);
        let policies = follow(Api::<NetworkPolicy>::all(client.clone()), &mut tasks);
        let nodes = nodes.to_vec();
        tasks.spawn(async move {
            let mut applied: Vec<String> = vec![String::new(); nodes.len()];
            loop {
                tokio::time::sleep(PERIOD).await;
                // Every cluster has some: they have not been listed yet.
                if namespaces.state().is_empty() || pods.state().is_empty() {
                    continue;
                }
                let cluster = Cluster::of(&pods.state(), &namespaces.state(), &policies.state());
                match cluster.and_then(|cluster| cluster.rules()) {
                    Ok(rules) => apply(&nodes, &rules, &mut applied).await,
                    Err(error) => eprintln!("NetworkPolicies: {error:#}"),
                }
            }
        });
        Self { _tasks: tasks }
    }
}

fn follow<K>(api: Api<K>, tasks: &mut JoinSet<()>) -> Store<K>
where
    K: kube::Resource<DynamicType = ()> + Clone + std::fmt::Debug + Send + Sync + 'static,
    K: serde::de::DeserializeOwned,
{
    let (store, writer) = reflector::store();
    let watched = watcher(api, watcher::Config::default()).default_backoff().reflect(writer);
    tasks.spawn(watched.for_each(|_| std::future::ready(())));
    store
}

/// Puts rules into force on the nodes that have others.
async fn apply(nodes: &[Arc<Node>], rules: &str, applied: &mut [String]) {
    for (node, applied) in nodes.iter().zip(applied) {
        // A node that had no power has no rules.
        if !node.has_power() {
            applied.clear();
        }
        if applied == rules || !node.has_power() {
            continue;
        }
        let file = node.driver().with_file_name("policies.nft");
        match load(node, &file, rules).await {
            Ok(()) => rules.clone_into(applied),
            Err(error) => eprintln!("NetworkPolicies of {}: {error:#}", node.name()),
        }
    }
}

async fn load(node: &Node, file: &Path, rules: &str) -> Result<()> {
    std::fs::write(file, rules)?;
    let mut nft = tokio::process::Command::new("nsenter");
    nft.args(["--net", "--target", &node.first().to_string(), "nft", "--file"]).arg(file);
    let output = nft.output().await.context("running nsenter")?;
    ensure!(output.status.success(), "nft: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(())
}

/// A pod with an address of its own.
#[derive(Debug)]
struct PodAddress {
    address: Ipv4Addr,
    namespace: String,
    labels: Labels,
}

/// What the rules are made of.
#[derive(Debug)]
struct Cluster {
    pods: Vec<PodAddress>,
    namespaces: BTreeMap<String, Labels>,
    /// By namespace.
    policies: Vec<(String, NetworkPolicySpec)>,
}

/// Which way a connection goes, seen from the pod that a policy selects.
#[derive(Clone, Copy, Debug)]
enum Direction {
    Ingress,
    Egress,
}

impl Direction {
    fn name(self) -> &'static str {
        match self {
            Self::Ingress => "Ingress",
            Self::Egress => "Egress",
        }
    }

    /// Where a packet has the address of the pod that a policy selects.
    fn selected(self) -> &'static str {
        match self {
            Self::Ingress => "ip daddr",
            Self::Egress => "ip saddr",
        }
    }

    /// Where it has that of the other side.
    fn peer(self) -> &'static str {
        match self {
            Self::Ingress => "ip saddr",
            Self::Egress => "ip daddr",
        }
    }
}

impl Cluster {
    fn of(pods: &[Arc<Pod>], namespaces: &[Arc<Namespace>], policies: &[Arc<NetworkPolicy>]) -> Result<Self> {
        let mut found = Vec::new();
        for pod in pods {
            let (spec, status) = (pod.spec.as_ref(), pod.status.as_ref());
            let in_nodes_network = spec.and_then(|spec| spec.host_network) == Some(true);
            let ended = matches!(status.and_then(|s| s.phase.as_deref()), Some("Succeeded" | "Failed"));
            if in_nodes_network || ended {
                continue;
            }
            if let Some(address) = status.and_then(|status| status.pod_ip.as_deref()) {
                found.push(PodAddress {
                    address: address.parse()?,
                    namespace: pod.namespace().unwrap_or_default(),
                    labels: pod.labels().clone(),
                });
            }
        }
        found.sort_by_key(|pod| pod.address);
        let namespaces = namespaces.iter().map(|ns| (ns.name_any(), ns.labels().clone())).collect();
        let mut policies: Vec<_> = policies
            .iter()
            .filter_map(|policy| {
                Some(((policy.namespace().unwrap_or_default(), policy.name_any()), policy.spec.clone()?))
            })
            .collect();
        policies.sort_by(|(one, _), (other, _)| one.cmp(other));
        let policies = policies.into_iter().map(|((namespace, _), spec)| (namespace, spec)).collect();
        Ok(Self { pods: found, namespaces, policies })
    }

    /// The rules as a file for `nft`, in place of those before.
    fn rules(&self) -> Result<String> {
        let (mut jumps, mut chains) = (String::new(), String::new());
        for direction in [Direction::Egress, Direction::Ingress] {
            for pod in &self.pods {
                let Some(allowed) = self.allowed(pod, direction)? else { continue };
                let chain = format!("{}-{}", direction.name(), pod.address).to_lowercase().replace('.', "-");
                writeln!(jumps, "  {} {} jump {chain}", direction.selected(), pod.address)?;
                writeln!(chains, " chain {chain} {{")?;
                for rule in allowed {
                    writeln!(chains, "  {rule} return")?;
                }
                writeln!(chains, "  drop\n }}")?;
            }
        }
        let known: Vec<_> = self.pods.iter().map(|pod| pod.address.to_string()).collect();
        let of_pods = format!("ip saddr {}", Network::PODS);
        let unknown = match known.as_slice() {
            [] => of_pods,
            known => format!("{of_pods} ip saddr != {{ {} }}", known.join(", ")),
        };
        Ok(format!(
            "table ip {TABLE} {{}}\ndelete table ip {TABLE}\ntable ip {TABLE} {{\n{chains} chain forward {{\n  \
             type filter hook forward priority filter; policy accept;\n  ct state established,related accept\n  \
             {unknown} drop\n{jumps} }}\n}}\n"
        ))
    }

    /// What the policies that select a pod let pass, as matches of nftables; none where no policy isolates it.
    fn allowed(&self, pod: &PodAddress, direction: Direction) -> Result<Option<BTreeSet<String>>> {
        let mut allowed: Option<BTreeSet<String>> = None;
        for (namespace, policy) in &self.policies {
            let isolates = match (&policy.policy_types, direction) {
                (Some(types), _) => types.iter().any(|name| name == direction.name()),
                (None, Direction::Ingress) => true,
                (None, Direction::Egress) => policy.egress.is_some(),
            };
            let selector = policy.pod_selector.clone().unwrap_or_default();
            if !isolates || *namespace != pod.namespace || !matches(&selector, &pod.labels)? {
                continue;
            }
            let allowed = allowed.get_or_insert_default();
            let rules: Vec<_> = match direction {
                Direction::Ingress => {
                    policy.ingress.iter().flatten().map(|rule| (&rule.from, &rule.ports)).collect()
                }
                Direction::Egress => {
                    policy.egress.iter().flatten().map(|rule| (&rule.to, &rule.ports)).collect()
                }
            };
            for (peers, ports) in rules {
                let ports = match ports.as_deref().unwrap_or_default() {
                    [] => vec![String::new()],
                    ports => ports.iter().map(port).collect::<Result<_>>()?,
                };
                for peer in self.addresses(namespace, peers.as_deref().unwrap_or_default(), direction)? {
                    allowed.extend(ports.iter().map(|port| format!("{peer} {port}").trim().to_owned()));
                }
            }
        }
        Ok(allowed)
    }

    /// The other sides of a rule, as matches of nftables.
    fn addresses(
        &self,
        namespace: &str,
        peers: &[NetworkPolicyPeer],
        direction: Direction,
    ) -> Result<Vec<String>> {
        if peers.is_empty() {
            return Ok(vec![String::new()]);
        }
        let mut found = Vec::new();
        for peer in peers {
            if let Some(block) = &peer.ip_block {
                let field = direction.peer();
                let mut text = format!("{field} {}", block.cidr);
                for except in block.except.iter().flatten() {
                    write!(text, " {field} != {except}")?;
                }
                found.push(text);
                continue;
            }
            let mut addresses = Vec::new();
            for pod in &self.pods {
                let in_namespace = match &peer.namespace_selector {
                    None => pod.namespace == namespace,
                    Some(selector) => {
                        let labels = self.namespaces.get(&pod.namespace);
                        matches(selector, labels.unwrap_or(&Labels::new()))?
                    }
                };
                let selected =
                    peer.pod_selector.as_ref().map_or(Ok(true), |selector| matches(selector, &pod.labels))?;
                if in_namespace && selected {
                    addresses.push(pod.address.to_string());
                }
            }
            if !addresses.is_empty() {
                found.push(format!("{} {{ {} }}", direction.peer(), addresses.join(", ")));
            }
        }
        Ok(found)
    }
}

fn matches(selector: &LabelSelector, labels: &Labels) -> Result<bool> {
    Ok(Selector::try_from(selector.clone())?.matches(labels))
}

/// A port, or a range of them, as a match of nftables.
fn port(port: &NetworkPolicyPort) -> Result<String> {
    let protocol = port.protocol.as_deref().unwrap_or("TCP").to_lowercase();
    Ok(match (&port.port, port.end_port) {
        (None, _) => format!("meta l4proto {protocol}"),
        (Some(IntOrString::Int(first)), None) => format!("{protocol} dport {first}"),
        (Some(IntOrString::Int(first)), Some(last)) => format!("{protocol} dport {first}-{last}"),
        (Some(IntOrString::String(name)), _) => bail!("the port {name} is named, and this enforces numbers"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pod(namespace: &str, name: &str, ip: &str, labels: Value) -> Arc<Pod> {
        let meta = json!({"namespace": namespace, "name": name, "labels": labels});
        let pod = json!({"metadata": meta, "spec": {"containers": []}, "status": {"podIP": ip, "phase": "Running"}});
        Arc::new(serde_json::from_value(pod).expect("a pod"))
    }

    fn rules(policies: &[Value]) -> Result<String> {
        let pods = [
            pod("team", "train", "10.244.1.2", json!({"job": "a"})),
            pod("team", "other", "10.244.1.3", json!({})),
            pod("system", "operator", "10.244.2.2", json!({"app": "operator"})),
        ];
        let namespace = |name: &str| {
            let labels = json!({"name": name});
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).expect("one"),
            )
        };
        let policies: Vec<_> = policies
            .iter()
            .map(|spec| {
                let policy = json!({"metadata": {"namespace": "team", "name": "p"}, "spec": spec});
                Arc::new(serde_json::from_value(policy).expect("a policy"))
            })
            .collect();
        Cluster::of(&pods, &[namespace("team"), namespace("system")], &policies)?.rules()
    }

    fn chain<'a>(rules: &'a str, name: &str) -> Vec<&'a str> {
        let from = rules.split_once(&format!("chain {name} {{\n"));
        from.map_or_else(Vec::new, |(_, rest)| {
            rest.lines().take_while(|line| !line.contains('}') || line.contains('{')).map(str::trim).collect()
        })
    }

    #[test]
    fn without_policies_everything_passes() {
        let rules = rules(&[]).expect("rules");
        assert!(!rules.contains("jump") && rules.contains("policy accept"), "{rules}");
    }

    #[test]
    fn a_pod_that_has_no_rules_yet_reaches_nothing() {
        let rules = rules(&[]).expect("rules");
        let drops: Vec<_> = rules.lines().map(str::trim).filter(|line| line.ends_with("drop")).collect();
        let known = "10.244.1.2, 10.244.1.3, 10.244.2.2";
        assert_eq!(drops, [format!("ip saddr 10.244.0.0/16 ip saddr != {{ {known} }} drop")], "{rules}");
    }

    #[test]
    fn a_policy_without_rules_denies_what_its_types_say() {
        let all = rules(&[json!({"podSelector": {}, "policyTypes": ["Ingress", "Egress"]})]).expect("rules");
        for chain_name in ["ingress-10-244-1-2", "egress-10-244-1-2", "ingress-10-244-1-3"] {
            assert_eq!(chain(&all, chain_name), ["drop"], "{all}");
        }
        // A pod of another namespace is not selected.
        assert!(!all.contains("daddr 10.244.2.2 jump"), "{all}");
        // Without types: ingress, and egress only where there are rules.
        let default = rules(&[json!({"podSelector": {"matchLabels": {"job": "a"}}})]).expect("rules");
        assert_eq!(chain(&default, "ingress-10-244-1-2"), ["drop"], "{default}");
        assert!(!default.contains("egress-") && !default.contains("addr 10.244.1.3"), "{default}");
    }

    #[test]
    fn rules_name_peers_and_ports_and_policies_add_up() {
        let deny = json!({"podSelector": {}, "policyTypes": ["Egress"]});
        let allow = json!({
            "podSelector": {"matchExpressions": [{"key": "job", "operator": "Exists"}]},
            "policyTypes": ["Egress"],
            "egress": [
                {"to": [{"namespaceSelector": {"matchLabels": {"name": "system"}}, "podSelector": {"matchLabels": {"app": "operator"}}}],
                 "ports": [{"port": 8443}, {"protocol": "UDP", "port": 53}]},
                {"to": [{"podSelector": {}}]},
                {"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 80, "endPort": 90}]},
                {"to": [{"podSelector": {"matchLabels": {"nobody": "here"}}}]},
            ],
        });
        let rules = rules(&[deny, allow]).expect("rules");
        assert_eq!(
            chain(&rules, "egress-10-244-1-2"),
            [
                "ip daddr 10.0.0.0/8 ip daddr != 10.1.0.0/16 tcp dport 80-90 return",
                "ip daddr { 10.244.1.2, 10.244.1.3 } return",
                "ip daddr { 10.244.2.2 } tcp dport 8443 return",
                "ip daddr { 10.244.2.2 } udp dport 53 return",
                "drop",
            ]
        );
        assert_eq!(chain(&rules, "egress-10-244-1-3"), ["drop"]);
    }

    #[test]
    fn a_named_port_is_an_error() {
        let named = json!({"podSelector": {}, "ingress": [{"ports": [{"port": "http"}]}]});
        assert!(rules(&[named]).is_err());
    }
}
