//! What shall go wrong, as data: which requests ([`Select`]), what happens to them ([`Fault`]), how often ([`Share`]).
//!
//! Rules are looked through in the order they were added. A delay adds up with what later rules do; the first other
//! fault that applies is the one that happens.

use std::time::{Duration, Instant};

use super::record::Record;
use super::request::{ApiRequest, Verb};

/// Which requests a rule is for. Empty lists and absent values select everything.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Select {
    callers: Vec<String>,
    verbs: Vec<Verb>,
    resources: Vec<String>,
    without: Vec<String>,
    namespace: Option<String>,
    name: Option<String>,
    label: Option<(String, String)>,
}

impl Select {
    /// Every request.
    pub fn all() -> Self {
        Self::default()
    }

    /// Requests with one of these verbs.
    pub fn verbs(verbs: impl IntoIterator<Item = Verb>) -> Self {
        Self { verbs: verbs.into_iter().collect(), ..Self::default() }
    }

    /// Requests that change something, but not elections: a leader that cannot renew is a case of its own.
    pub fn writes() -> Self {
        Self::verbs(Verb::WRITES).without("leases")
    }

    /// Requests that read, but not elections.
    pub fn reads() -> Self {
        Self::verbs(Verb::READS).without("leases")
    }

    /// Of this caller only: the name of the proxy's endpoint.
    pub fn caller(mut self, caller: impl Into<String>) -> Self {
        self.callers.push(caller.into());
        self
    }

    /// For this resource only, `pods` or `trainingjobs/status`; named again, for these.
    pub fn resource(mut self, resource: impl Into<String>) -> Self {
        self.resources.push(resource.into());
        self
    }

    /// Not for this resource.
    pub fn without(mut self, resource: impl Into<String>) -> Self {
        self.without.push(resource.into());
        self
    }

    /// In this namespace only.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// For the object of this name only.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Only where the object in the body has this label.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.label = Some((name.into(), value.into()));
        self
    }

    /// Whether a request is selected.
    pub fn selects(&self, asked: &ApiRequest) -> bool {
        self.selects_words(&asked.caller, asked.verb, &asked.resource, &asked.namespace, &asked.name)
            && self.label.as_ref().is_none_or(|(name, value)| asked.label(name) == Some(value))
    }

    /// Whether a record is of a selected request. Labels are not recorded: they count as met.
    pub fn selects_record(&self, record: &Record) -> bool {
        self.selects_words(&record.caller, record.verb, &record.resource, &record.namespace, &record.name)
    }

    fn selects_words(&self, caller: &str, verb: Verb, resource: &str, namespace: &str, name: &str) -> bool {
        let among = |list: &[String], value: &str| list.is_empty() || list.iter().any(|one| one == value);
        among(&self.callers, caller)
            && (self.verbs.is_empty() || self.verbs.contains(&verb))
            && among(&self.resources, resource)
            && !self.without.iter().any(|one| one == resource)
            && self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.name.as_ref().is_none_or(|wanted| wanted == name)
    }
}

/// What happens to a selected request.
#[derive(Debug, Clone, PartialEq)]
pub enum Fault {
    /// The API server is not asked; this is the answer.
    Answer {
        /// HTTP status, for example 409, 429 or 500.
        status: u16,
        /// Seconds of a `Retry-After` header.
        retry_after: Option<u64>,
    },
    /// The API server does what was asked, and the connection is closed instead of an answer.
    LoseAnswer,
    /// The API server does what was asked, and the answer is 504, as of a proxy that did not wait.
    GatewayTimeout,
    /// Asked this much later.
    Delay(Duration),
    /// Not asked before the rule is removed.
    HoldRequest,
    /// Asked at once; the answer comes when the rule is removed.
    HoldAnswer,
    /// Watches that were open before the rule was added deliver nothing until it is removed, not even their end: as where
    /// a firewall forgot a connection. Others go on.
    HoldOpenWatches,
    /// Reads are answered as of this resource version; watches deliver nothing until the rule is removed.
    OlderReads {
        /// The version, which must still be in etcd's history.
        version: u64,
    },
}

/// Which of the selected requests a rule applies to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Share {
    /// All of them.
    All,
    /// So many of a thousand, chosen by this seed and the request's number.
    PerMille {
        /// 0..=1000.
        share: u64,
        /// Another seed chooses others.
        seed: u64,
    },
    /// Only the one with this number, from 1.
    Nth(u64),
    /// The first so many.
    First(u64),
}

impl Share {
    fn applies_to(self, number: u64) -> bool {
        match self {
            Self::All => true,
            Self::PerMille { share, seed } => mix(seed ^ mix(number)) % 1000 < share,
            Self::Nth(wanted) => number == wanted,
            Self::First(count) => number <= count,
        }
    }
}

/// SplitMix64's finaliser: numbers that follow each other give unrelated ones.
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Something that goes wrong.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    pub(super) select: Select,
    pub(super) fault: Fault,
    pub(super) share: Share,
    pub(super) lasts: Option<Duration>,
}

impl Rule {
    /// `fault` for all that `select` selects, until the rule is removed.
    pub fn new(select: Select, fault: Fault) -> Self {
        Self { select, fault, share: Share::All, lasts: None }
    }

    /// For a share of them only.
    pub fn share(mut self, share: Share) -> Self {
        self.share = share;
        self
    }

    /// Ends by itself after this time.
    pub fn lasts(mut self, time: Duration) -> Self {
        self.lasts = Some(time);
        self
    }
}

/// Names a rule that was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleId(pub(super) u64);

#[derive(Debug)]
struct Active {
    id: RuleId,
    rule: Rule,
    added: Instant,
    until: Option<Instant>,
    selected: u64,
    met: u64,
}

/// What is to be done with a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Decision {
    pub delay: Duration,
    pub fault: Option<(RuleId, Fault)>,
}

/// The rules in force.
#[derive(Debug, Default)]
pub(super) struct Rules {
    active: Vec<Active>,
    /// How often rules that are gone met a request.
    ended: Vec<(RuleId, u64)>,
    next: u64,
}

impl Rules {
    pub fn add(&mut self, rule: Rule, now: Instant) -> RuleId {
        let id = RuleId(self.next);
        self.next += 1;
        let until = rule.lasts.map(|time| now + time);
        self.active.push(Active { id, rule, added: now, until, selected: 0, met: 0 });
        id
    }

    pub fn remove(&mut self, id: RuleId) {
        self.end(|active| active.id == id);
    }

    pub fn clear(&mut self) {
        self.end(|_| true);
    }

    fn end(&mut self, which: impl Fn(&Active) -> bool) {
        self.ended.extend(self.active.iter().filter(|one| which(one)).map(|one| (one.id, one.met)));
        self.active.retain(|one| !which(one));
    }

    pub fn in_force(&mut self, id: RuleId, now: Instant) -> bool {
        self.expire(now);
        self.active.iter().any(|one| one.id == id)
    }

    /// How many requests a rule met.
    pub fn met(&self, id: RuleId) -> u64 {
        let active = self.active.iter().find(|one| one.id == id).map(|one| one.met);
        active.or_else(|| self.ended.iter().find(|(of, _)| *of == id).map(|(_, met)| *met)).unwrap_or(0)
    }

    /// When the next rule ends by itself, after `now`: one that has ended is removed with the next request.
    pub fn next_end(&self, now: Instant) -> Option<Instant> {
        self.active.iter().filter_map(|one| one.until).filter(|until| *until > now).min()
    }

    fn expire(&mut self, now: Instant) {
        self.end(|active| active.until.is_some_and(|until| until <= now));
    }

    /// What happens to a request that comes now.
    pub fn decide(&mut self, asked: &ApiRequest, now: Instant) -> Decision {
        self.expire(now);
        let mut decision = Decision { delay: Duration::ZERO, fault: None };
        for active in self.active.iter_mut().filter(|one| one.rule.select.selects(asked)) {
            active.selected += 1;
            if decision.fault.is_some() || !active.rule.share.applies_to(active.selected) {
                continue;
            }
            match &active.rule.fault {
                Fault::Delay(time) => decision.delay += *time,
                // A watch is opened and then held; see `holds`.
                Fault::HoldOpenWatches => continue,
                Fault::OlderReads { .. } if asked.verb.writes() || asked.verb == Verb::Watch => continue,
                fault => decision.fault = Some((active.id, fault.clone())),
            }
            active.met += 1;
        }
        decision
    }

    /// Whether what a watch opened at `opened` would deliver now is held back.
    pub fn holds(&mut self, watch: &ApiRequest, opened: Instant, now: Instant) -> bool {
        self.expire(now);
        self.active.iter().filter(|one| one.rule.select.selects(watch)).any(|one| match one.rule.fault {
            Fault::HoldOpenWatches => opened <= one.added,
            Fault::OlderReads { .. } => true,
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn patch(namespace: &str, name: &str) -> ApiRequest {
        let uri = format!("/apis/andreas.dev/v1alpha1/namespaces/{namespace}/trainingjobs/{name}/status");
        ApiRequest::parse("operator", "andreas-operator/1", &Method::PATCH, &uri, b"{}")
    }

    fn conflict() -> Fault {
        Fault::Answer { status: 409, retry_after: None }
    }

    #[test]
    fn a_share_of_the_requests_is_met_the_same_for_the_same_seed() {
        let met = |seed| {
            let mut rules = Rules::default();
            let rule = Rule::new(Select::writes(), conflict()).share(Share::PerMille { share: 500, seed });
            rules.add(rule, Instant::now());
            (0..1000)
                .map(|_| rules.decide(&patch("a", "j"), Instant::now()).fault.is_some())
                .collect::<Vec<_>>()
        };
        let first = met(7);
        let count = first.iter().filter(|met| **met).count();
        assert!((450..550).contains(&count), "{count}");
        assert_eq!(first, met(7));
        assert_ne!(first, met(8));
    }

    #[test]
    fn only_the_nth_selected_request_is_met() {
        let mut rules = Rules::default();
        let select = Select::writes().namespace("a");
        let id = rules.add(Rule::new(select, Fault::LoseAnswer).share(Share::Nth(2)), Instant::now());
        let mut fault = |namespace| rules.decide(&patch(namespace, "j"), Instant::now()).fault.is_some();
        assert_eq!([fault("a"), fault("b"), fault("a"), fault("a")], [false, false, true, false]);
        assert_eq!(rules.met(id), 1);
        rules.remove(id);
        assert_eq!(rules.met(id), 1, "still known when the rule is gone");
    }

    #[test]
    fn a_rule_ends_by_itself() {
        let (mut rules, now) = (Rules::default(), Instant::now());
        rules.add(Rule::new(Select::all(), conflict()).lasts(Duration::from_secs(5)), now);
        assert!(rules.decide(&patch("a", "j"), now).fault.is_some());
        let end = rules.next_end(now).unwrap();
        assert_eq!(end, now + Duration::from_secs(5));
        assert_eq!(rules.next_end(end), None, "nobody waits for what has been, though nobody asked since");
        assert!(rules.decide(&patch("a", "j"), now + Duration::from_secs(6)).fault.is_none());
    }

    #[test]
    fn delays_add_up_and_the_first_other_fault_counts() {
        let (mut rules, now) = (Rules::default(), Instant::now());
        for millis in [10, 20] {
            rules.add(Rule::new(Select::all(), Fault::Delay(Duration::from_millis(millis))), now);
        }
        rules.add(Rule::new(Select::writes(), conflict()), now);
        rules.add(Rule::new(Select::writes(), Fault::LoseAnswer), now);
        let decision = rules.decide(&patch("a", "j"), now);
        assert_eq!(decision.delay, Duration::from_millis(30));
        assert_eq!(decision.fault.map(|(_, fault)| fault), Some(conflict()));
    }

    #[test]
    fn only_watches_that_were_open_are_held() {
        let (mut rules, before) = (Rules::default(), Instant::now());
        let watch = ApiRequest::parse("o", "", &Method::GET, "/api/v1/pods?watch=true", b"");
        let now = before + Duration::from_secs(1);
        rules.add(Rule::new(Select::all(), Fault::HoldOpenWatches), now);
        assert!(rules.holds(&watch, before, now));
        assert!(!rules.holds(&watch, now + Duration::from_secs(1), now + Duration::from_secs(2)));
    }

    #[test]
    fn elections_are_left_alone_unless_named() {
        let uri = "/apis/coordination.k8s.io/v1/namespaces/s/leases/l";
        let renew = ApiRequest::parse("operator", "", &Method::PUT, uri, b"{}");
        assert!(!Select::writes().selects(&renew));
        assert!(Select::all().selects(&renew));
        assert!(Select::verbs([Verb::Update]).resource("leases").selects(&renew));
    }

    #[test]
    fn a_pod_is_selected_by_its_label_in_the_body() {
        let select = Select::verbs([Verb::Create]).resource("pods").label("andreas.dev/index", "1");
        let pod = |index: u8| {
            let body = format!(r#"{{"metadata":{{"labels":{{"andreas.dev/index":"{index}"}}}}}}"#);
            ApiRequest::parse("o", "", &Method::POST, "/api/v1/namespaces/a/pods", body.as_bytes())
        };
        assert!(select.selects(&pod(1)) && !select.selects(&pod(0)));
    }
}
