//! Kubernetes quantities as whole numbers, and what a pod takes of its node.

use std::collections::BTreeMap;

use andreas_api::names::GPU_RESOURCE;
use andreas_api::slim::{SlimContainer, SlimPodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// A quantity in thousandths, rounded up; `None` where the text is not a quantity or negative.
///
/// The grammar is that of `k8s.io/apimachinery/pkg/api/resource`: decimal number, then `m`, `k`, `M`, `G`, `T`, `P`, `E`,
/// `n`, `u`, `Ki` to `Ei`, or a decimal exponent.
pub fn milli(text: &str) -> Option<u128> {
    let text = text.trim();
    let text = text.strip_prefix('+').unwrap_or(text);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') || whole.len() > 24 {
        return None;
    }
    let fraction = &fraction[..fraction.len().min(12)];
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let mantissa = whole.checked_mul(scale)?.checked_add(part)?;
    let (times, over): (u128, u128) = match suffix {
        "" => (1_000, 1),
        "n" => (1, 1_000_000),
        "u" => (1, 1_000),
        "m" => (1, 1),
        "k" => (1_000_000, 1),
        "M" => (1_000_000_000, 1),
        "G" => (1_000_000_000_000, 1),
        "T" => (1_000_000_000_000_000, 1),
        "P" => (1_000_000_000_000_000_000, 1),
        "E" => (1_000_000_000_000_000_000_000, 1),
        "Ki" => (1_000 << 10, 1),
        "Mi" => (1_000 << 20, 1),
        "Gi" => (1_000 << 30, 1),
        "Ti" => (1_000 << 40, 1),
        "Pi" => (1_000 << 50, 1),
        "Ei" => (1_000 << 60, 1),
        exponent => {
            let exponent: i32 = exponent.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = |by: i32| 10_u128.checked_pow(u32::try_from(by).ok()?);
            if exponent >= 0 { (power(exponent)?.checked_mul(1_000)?, 1) } else { (1_000, power(-exponent)?) }
        }
    };
    Some(mantissa.checked_mul(times)?.div_ceil(scale.checked_mul(over)?))
}

/// A quantity in whole units, rounded up, at most `u64::MAX`; 0 where it cannot be read.
pub fn units(quantity: &Quantity) -> u64 {
    clamp(milli(&quantity.0).unwrap_or(0).div_ceil(1_000))
}

/// A quantity in thousandths, at most `u64::MAX`; 0 where it cannot be read.
pub fn thousandths(quantity: &Quantity) -> u64 {
    clamp(milli(&quantity.0).unwrap_or(0))
}

fn clamp(value: u128) -> u64 {
    u64::try_from(value).unwrap_or(u64::MAX)
}

/// What pods take of a node, or a node has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amounts {
    /// Whole GPUs.
    pub gpus: u64,
    /// CPU, thousandths of a core.
    pub cpu_milli: u64,
    /// Memory, bytes.
    pub memory: u64,
    /// Pods.
    pub pods: u64,
}

impl Amounts {
    /// Of a map of resources by name (requests, or a node's allocatable).
    pub fn of(resources: &BTreeMap<String, Quantity>) -> Self {
        let get = |name: &str, read: fn(&Quantity) -> u64| resources.get(name).map_or(0, read);
        Self {
            gpus: get(GPU_RESOURCE, units),
            cpu_milli: get("cpu", thousandths),
            memory: get("memory", units),
            pods: get("pods", units),
        }
    }

    fn zip(self, other: Self, f: fn(u64, u64) -> u64) -> Self {
        Self {
            gpus: f(self.gpus, other.gpus),
            cpu_milli: f(self.cpu_milli, other.cpu_milli),
            memory: f(self.memory, other.memory),
            pods: f(self.pods, other.pods),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_add)
    }

    /// What is left, never below 0.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        self.zip(other, u64::saturating_sub)
    }

    /// The larger of each.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        self.zip(other, u64::max)
    }
}

/// What a container asks for: its requests, and limits where it has no request (as the API server defaults them).
fn container(container: &SlimContainer) -> Amounts {
    let (requests, limits) = (&container.resources.requests, &container.resources.limits);
    let asked = Amounts::of(requests);
    let capped = Amounts::of(limits);
    let pick =
        |name: &str, request: u64, limit: u64| if requests.contains_key(name) { request } else { limit };
    Amounts {
        gpus: pick(GPU_RESOURCE, asked.gpus, capped.gpus),
        cpu_milli: pick("cpu", asked.cpu_milli, capped.cpu_milli),
        memory: pick("memory", asked.memory, capped.memory),
        pods: 0,
    }
}

/// What a pod takes of its node, as the scheduler counts it (KEP-753): the larger of what runs at last (containers and
/// native sidecars) and of what any init container needs together with the sidecars started before it; plus overhead.
pub fn pod(spec: &SlimPodSpec) -> Amounts {
    let mut sidecars = Amounts::default();
    let mut initial = Amounts::default();
    for init in &spec.init_containers {
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars = sidecars.plus(container(init));
            initial = initial.max(sidecars);
        } else {
            initial = initial.max(sidecars.plus(container(init)));
        }
    }
    let running = spec.containers.iter().map(container).fold(sidecars, Amounts::plus);
    let mut total = running.max(initial).plus(Amounts::of(&spec.overhead));
    total.pods = 1;
    total
}

#[cfg(test)]
mod tests {
    use super::*;
    use andreas_api::slim::SlimResources;

    #[test]
    fn quantities_read_as_kubernetes_reads_them() {
        for (text, value) in [
            ("1", 1_000),
            ("100m", 100),
            ("0.5", 500),
            (".5", 500),
            ("1.5Gi", 1_610_612_736_000),
            ("12e2", 1_200_000),
            ("2E", 2_000_000_000_000_000_000_000),
            ("1500u", 2),
            ("5e-1", 500),
            ("0", 0),
        ] {
            assert_eq!(milli(text), Some(value), "{text}");
        }
        for text in ["", "abc", "1.2.3", "-1", "1e999", "1 Gi", "99999999999999999999999999999", "Ki"] {
            assert_eq!(milli(text), None, "{text}");
        }
    }

    fn with(cpu: &str, gpus: &str, always: bool) -> SlimContainer {
        let requests =
            [("cpu", cpu), (GPU_RESOURCE, gpus)].map(|(k, v)| (k.to_owned(), Quantity(v.to_owned())));
        let resources = SlimResources { requests: BTreeMap::from(requests), ..SlimResources::default() };
        let restart_policy = always.then(|| "Always".to_owned());
        SlimContainer { restart_policy, resources, ..SlimContainer::default() }
    }

    #[test]
    fn a_pod_takes_the_larger_of_starting_and_running() {
        let spec = SlimPodSpec {
            containers: vec![with("2", "4", false), with("500m", "0", false)],
            init_containers: vec![with("1", "0", true), with("4", "0", false)],
            ..SlimPodSpec::default()
        };
        // Running: 2 + 0.5 + sidecar 1 = 3.5; starting: sidecar 1 + 4 = 5.
        assert_eq!(pod(&spec), Amounts { gpus: 4, cpu_milli: 5_000, memory: 0, pods: 1 });
    }

    #[test]
    fn a_limit_alone_is_a_request() {
        let mut only = SlimContainer::default();
        only.resources.limits = BTreeMap::from([(GPU_RESOURCE.to_owned(), Quantity("2".into()))]);
        let spec = SlimPodSpec { containers: vec![only], ..SlimPodSpec::default() };
        assert_eq!(pod(&spec).gpus, 2);
    }
}
