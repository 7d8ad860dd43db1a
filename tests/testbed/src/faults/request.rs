//! One request to the API server as rules and counts see it: who asks for what. Pure.

use http::Method;
use serde_json::Value;

/// What a request does, in Kubernetes' words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Reads one object.
    Get,
    /// Reads a collection.
    List,
    /// Follows a collection.
    Watch,
    /// `POST`.
    Create,
    /// `PUT`.
    Update,
    /// `PATCH`.
    Patch,
    /// Deletes one object.
    Delete,
    /// Deletes a collection.
    DeleteCollection,
}

impl Verb {
    /// The verbs that change something.
    pub const WRITES: [Self; 5] =
        [Self::Create, Self::Update, Self::Patch, Self::Delete, Self::DeleteCollection];
    /// The verbs that read.
    pub const READS: [Self; 3] = [Self::Get, Self::List, Self::Watch];

    /// Whether it changes something.
    pub fn writes(self) -> bool {
        Self::WRITES.contains(&self)
    }
}

/// A request, taken apart.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiRequest {
    /// The proxy's endpoint on which it came: the name given to `FaultProxy::endpoint`.
    pub caller: String,
    /// The `User-Agent` as the caller sent it.
    pub user_agent: String,
    /// What it does.
    pub verb: Verb,
    /// The resource with its subresource, for example `pods` or `trainingjobs/status`; the path where it is no resource.
    pub resource: String,
    /// The namespace; empty for a whole cluster.
    pub namespace: String,
    /// The object's name; empty for a collection. For a create, the name in the body.
    pub name: String,
    /// Label and field selectors of a collection, as they are in the query.
    pub selector: String,
    /// Whether this is a further page of a list.
    pub continues: bool,
    /// The body where it is JSON, else null.
    pub body: Value,
}

impl ApiRequest {
    /// Takes a request apart. `uri` is path and query.
    pub fn parse(caller: &str, user_agent: &str, method: &Method, uri: &str, body: &[u8]) -> Self {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let place = PathTarget::of(path);
        let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
        let asks = |pair: &str| query.split('&').any(|one| one == pair);
        let verb = match *method {
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH => Verb::Patch,
            Method::DELETE if place.name.is_empty() => Verb::DeleteCollection,
            Method::DELETE => Verb::Delete,
            _ if asks("watch=true") || asks("watch=1") => Verb::Watch,
            _ if place.name.is_empty() && place.is_resource => Verb::List,
            _ => Verb::Get,
        };
        let name = match body["metadata"]["name"].as_str() {
            Some(name) if place.name.is_empty() && verb == Verb::Create => name.to_owned(),
            _ => place.name,
        };
        let selectors = query.split('&').filter(|one| one.contains("Selector="));
        Self {
            caller: caller.to_owned(),
            selector: selectors.collect::<Vec<_>>().join("&"),
            user_agent: user_agent.to_owned(),
            verb,
            resource: place.resource,
            namespace: place.namespace,
            name,
            continues: query.split('&').any(|one| one.starts_with("continue=") && one.len() > 9),
            body,
        }
    }

    /// The value of a label of the object in the body.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.body["metadata"]["labels"][name].as_str()
    }

    /// `patch trainingjobs/status team/bert`, for messages.
    pub fn describe(&self) -> String {
        describe(self.verb, &self.resource, &self.namespace, &self.name)
    }
}

pub(super) fn describe(verb: Verb, resource: &str, namespace: &str, name: &str) -> String {
    format!("{} {resource} {namespace}/{name}", format!("{verb:?}").to_lowercase())
}

/// What a path names.
#[derive(Debug, Default, PartialEq)]
struct PathTarget {
    is_resource: bool,
    resource: String,
    namespace: String,
    name: String,
}

impl PathTarget {
    fn of(path: &str) -> Self {
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        let rest: &[&str] = match parts.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] if !rest.is_empty() => rest,
            _ => return Self { resource: path.to_owned(), ..Self::default() },
        };
        let (namespace, rest) = match rest {
            // `namespaces/NAME/status` is a namespace itself.
            ["namespaces", _, "status" | "finalize"] => ("", rest),
            ["namespaces", namespace, inside @ ..] if !inside.is_empty() => (*namespace, inside),
            _ => ("", rest),
        };
        let (resource, name) = match rest {
            [resource] => ((*resource).to_owned(), ""),
            [resource, name] => ((*resource).to_owned(), *name),
            [resource, name, subresource, ..] => (format!("{resource}/{subresource}"), *name),
            [] => return Self::default(),
        };
        Self { is_resource: true, resource, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: Method, uri: &str) -> ApiRequest {
        ApiRequest::parse("operator", "andreas-operator/1", &method, uri, b"")
    }

    #[test]
    fn paths_are_read_as_kubernetes_reads_them() {
        let cases = [
            (Method::GET, "/api/v1/pods?limit=500", Verb::List, "pods", "", ""),
            (Method::GET, "/api/v1/namespaces/a/pods/p", Verb::Get, "pods", "a", "p"),
            (Method::GET, "/api/v1/pods?watch=true&resourceVersion=7", Verb::Watch, "pods", "", ""),
            (Method::POST, "/api/v1/namespaces/a/pods/p/binding", Verb::Create, "pods/binding", "a", "p"),
            (
                Method::PATCH,
                "/apis/andreas.dev/v1alpha1/namespaces/a/trainingjobs/j/status?x=y",
                Verb::Patch,
                "trainingjobs/status",
                "a",
                "j",
            ),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/s/leases/l",
                Verb::Update,
                "leases",
                "s",
                "l",
            ),
            (Method::DELETE, "/api/v1/namespaces/a/pods", Verb::DeleteCollection, "pods", "a", ""),
            (Method::DELETE, "/api/v1/nodes/n", Verb::Delete, "nodes", "", "n"),
            (Method::GET, "/api/v1/namespaces/a", Verb::Get, "namespaces", "", "a"),
            (Method::GET, "/api/v1/namespaces/a/status", Verb::Get, "namespaces/status", "", "a"),
            (Method::GET, "/api/v1/namespaces", Verb::List, "namespaces", "", ""),
            (Method::GET, "/readyz", Verb::Get, "/readyz", "", ""),
            (Method::GET, "/apis/andreas.dev/v1alpha1", Verb::Get, "/apis/andreas.dev/v1alpha1", "", ""),
        ];
        for (method, uri, verb, resource, namespace, name) in cases {
            let got = asked(method, uri);
            assert_eq!(
                (got.verb, got.resource.as_str(), got.namespace.as_str(), got.name.as_str()),
                (verb, resource, namespace, name),
                "{uri}"
            );
        }
    }

    #[test]
    fn a_create_is_named_by_its_body_and_a_further_page_is_known() {
        let body = br#"{"metadata":{"name":"bert-1-0","labels":{"andreas.dev/index":"1"}}}"#;
        let made = ApiRequest::parse("o", "u", &Method::POST, "/api/v1/namespaces/a/pods", body);
        assert_eq!((made.name.as_str(), made.label("andreas.dev/index")), ("bert-1-0", Some("1")));
        assert!(!asked(Method::GET, "/api/v1/pods?limit=5").continues);
        assert!(asked(Method::GET, "/api/v1/pods?limit=5&continue=abc").continues);
        let selected = asked(Method::GET, "/api/v1/pods?labelSelector=a&limit=5&fieldSelector=b%3Dc");
        assert_eq!(selected.selector, "labelSelector=a&fieldSelector=b%3Dc");
    }
}
