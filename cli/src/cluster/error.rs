//! What can go wrong between this program and the API server, and what to do about it.

use andreas_runtime::kubeconfig::{self, Unusable, innermost};
use kube::core::Status;
use thiserror::Error;

use super::access::Right;

/// Reason that the client gives to an answer without a Status.
const NO_STATUS: &str = "Failed to parse error data";

/// A request that did not succeed.
#[derive(Debug, Error)]
pub enum ClusterError {
    /// No kubeconfig, or one that cannot be used.
    #[error("kubeconfig: {0}")]
    Configuration(String),
    /// The API server does not answer, or not in time.
    #[error("the API server at {url} does not answer: {cause}")]
    Unreachable {
        /// Its address.
        url: String,
        /// The innermost cause.
        cause: String,
    },
    /// The API server does not accept the credentials.
    #[error("the API server does not accept the credentials of the kubeconfig: {0}")]
    Unauthorized(String),
    /// No credentials can be had.
    #[error("no credentials: {0}")]
    NoCredentials(String),
    /// The right is missing.
    #[error(
        "missing right: {right}\n  granted by {}\n  check with: {}",
        right.granted_by(),
        right.question()
    )]
    Forbidden {
        /// The right that the request needs.
        right: Right,
    },
    /// There is no such object.
    #[error("{0} does not exist")]
    NotFound(String),
    /// The API server does not serve the kind.
    #[error("the cluster does not serve {0}: is ANDREAS installed there? (docs/installation.md)")]
    NotServed(String),
    /// Another client wrote the object meanwhile.
    #[error("{0}")]
    Conflict(String),
    /// The object is refused: schema, admission, quota, or it exists.
    #[error("{0}")]
    Refused(String),
    /// The API server failed or has too much to do: the same request may succeed later.
    #[error("{0}")]
    Unavailable(String),
    /// The API server, or a pod behind it, failed.
    #[error("{0}")]
    Failed(String),
}

impl ClusterError {
    /// What an answer of the API server means for a request that needs `right`, on `object`.
    pub fn from_status(status: &Status, right: &Right, object: Option<&str>) -> Self {
        let message = status.message.clone();
        let kind = right.resource_name();
        match status.code {
            401 => Self::Unauthorized(message),
            // Quotas and admission refuse with 403 too: only the authorizer names the user.
            403 if message.contains(" cannot ") || message.is_empty() => {
                Self::Forbidden { right: right.clone() }
            }
            404 => match (object, &right.namespace) {
                // A path that is not served has no details of an object.
                _ if !has_object(status) => Self::NotServed(kind),
                (Some(name), Some(namespace)) => {
                    Self::NotFound(format!("{kind} \"{name}\" in namespace {namespace}"))
                }
                (Some(name), None) => Self::NotFound(format!("{kind} \"{name}\"")),
                (None, _) => {
                    Self::NotFound(message.strip_suffix(" not found").unwrap_or(&message).to_owned())
                }
            },
            409 if status.reason != "AlreadyExists" => Self::Conflict(message),
            429 | 500..600 => Self::Unavailable(message),
            400..500 => Self::Refused(message),
            _ => Self::Failed(message),
        }
    }

    /// What an error of the client means for a request to `url` that needs `right`.
    pub fn from_client(error: kube::Error, url: &str, right: &Right, object: Option<&str>) -> Self {
        match error {
            // How the client marks an answer that is no Status: a proxy's or a login page.
            kube::Error::Api(status) if status.reason == NO_STATUS => {
                let body: String =
                    status.message.trim().lines().next().unwrap_or_default().chars().take(80).collect();
                let text = format!("{url} answers {}, not as an API server does: {body:?}", status.code);
                match status.code {
                    // So answers an API server of a kind that it does not serve.
                    404 => Self::NotServed(right.resource_name()),
                    401 => Self::Unauthorized(text),
                    429 | 500..600 => Self::Unavailable(text),
                    _ => Self::Failed(text),
                }
            }
            kube::Error::Api(status) => Self::from_status(&status, right, object),
            kube::Error::SerdeError(error) => Self::Failed(format!(
                "{url} answers, not as an API server does ({error}): is it the right address?"
            )),
            error @ kube::Error::Auth(_) => kubeconfig::unusable(&error, None).into(),
            kube::Error::Service(_) | kube::Error::HyperError(_) => {
                Self::Unreachable { url: url.to_owned(), cause: innermost(&error) }
            }
            other => Self::Failed(innermost(&other)),
        }
    }

    /// Whether the right is missing.
    pub fn is_forbidden(&self) -> bool {
        matches!(self, Self::Forbidden { .. })
    }

    /// Whether the same request may succeed later.
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Unavailable(_))
    }

    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound(_))
    }
}

fn has_object(status: &Status) -> bool {
    status.details.as_ref().is_some_and(|details| !details.name.is_empty())
}

impl From<Unusable> for ClusterError {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::Configuration(problem) => Self::Configuration(problem),
            Unusable::Credentials(problem) => Self::NoCredentials(problem),
        }
    }
}

#[cfg(test)]
mod tests {
    use andreas_api::TrainingJob;
    use kube::core::response::StatusDetails;

    use super::*;

    fn status(code: u16, message: &str, name: &str) -> Status {
        let details = StatusDetails {
            name: name.into(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        Status::failure(message, "").with_code(code).with_details(details)
    }

    #[test]
    fn an_answer_that_is_no_status_counts_by_its_code() {
        let right = Right::new::<TrainingJob>("get", Some("team-a"));
        let of = |code| {
            let status = Status::failure("<html>\nno", NO_STATUS).with_code(code).boxed();
            ClusterError::from_client(kube::Error::Api(status), "https://a", &right, Some("bert"))
        };
        assert!(
            matches!(of(404), ClusterError::NotServed(_)) && matches!(of(401), ClusterError::Unauthorized(_))
        );
        assert!(of(502).is_transient() && of(429).is_transient() && !of(302).is_transient());
        assert_eq!(of(302).to_string(), "https://a answers 302, not as an API server does: \"<html>\"");
    }

    #[test]
    fn an_answer_becomes_an_error_that_names_what_is_missing() {
        let right = Right::new::<TrainingJob>("get", Some("team-a"));
        let of = |code, message: &str, name: &str| {
            ClusterError::from_status(&status(code, message, name), &right, Some("bert")).to_string()
        };
        let forbidden = of(403, "User \"x\" cannot get resource \"trainingjobs\"", "bert");
        assert!(forbidden.starts_with("missing right: get trainingjobs.andreas.dev in namespace team-a"));
        assert!(forbidden.contains("granted by the ClusterRole view in that namespace"), "{forbidden}");
        assert_eq!(of(403, "exceeded quota: jobs", "bert"), "exceeded quota: jobs");
        assert_eq!(
            of(404, "not found", "bert"),
            "trainingjobs.andreas.dev \"bert\" in namespace team-a does not exist"
        );
        assert!(of(404, "the server could not find the requested resource", "").contains("does not serve"));
        assert!(of(401, "Unauthorized", "").contains("credentials"));
        assert_eq!(of(500, "etcd is away", ""), "etcd is away");
        let transient =
            |code| ClusterError::from_status(&status(code, "", ""), &right, Some("bert")).is_transient();
        for (code, expected) in [(429, true), (500, true), (503, true), (404, false), (422, false)] {
            assert_eq!(transient(code), expected, "{code}");
        }
    }
}
