//! Classifies the API server's errors.

use andreas_api::Reason;
use kube::Error;
use std::time::Duration;

/// How to handle an error.
#[derive(Clone, Debug, PartialEq)]
pub enum Refusal {
    /// The namespace's quota is exhausted: wait and report. Not the template's fault.
    Quota(String),
    /// The API server refuses this object: wait and show its message.
    Template(String),
    /// An object of that name exists.
    Exists,
    /// The object, or one written with it (a quota's use), changed meanwhile: retry later.
    Conflict,
    /// The object does not exist.
    NotFound,
    /// Overload, time-out or server error. Retry after this delay, if given.
    Busy(Option<Duration>),
}

/// The classes of LIFECYCLE section 5. 403 with "exceeded quota" or "status unknown for quota" is the quota.
/// Every other 4xx except 401, 404, 408, 409 and 429 is the template. The rest is retried silently.
///
/// "failed quota" (the quota requires requests that the template lacks) is the template's: waiting never
/// helps.
pub fn classify(error: &Error) -> Refusal {
    let Error::Api(status) = error else { return Refusal::Busy(None) };
    let message = || status.message.chars().take(1_000).collect::<String>();
    match status.code {
        403 if status.message.contains("exceeded quota")
            || status.message.contains("status unknown for quota") =>
        {
            Refusal::Quota(message())
        }
        404 => Refusal::NotFound,
        409 if status.reason == "AlreadyExists" => Refusal::Exists,
        409 => Refusal::Conflict,
        401 | 408 | 429 => Refusal::Busy(retry_after(status)),
        // Admission knows a new kind up to half a minute after its definition
        // (OwnerReferencesPermissionEnforcement).
        403 if status.message.contains("cannot find RESTMapping") => {
            Refusal::Busy(Some(Duration::from_secs(1)))
        }
        400..=499 => Refusal::Template(message()),
        _ => Refusal::Busy(retry_after(status)),
    }
}

/// A test of a JSON patch failed: 422 without the field that a refused object has.
pub fn is_failed_test(status: &kube::core::Status) -> bool {
    let of_no_field = |details: &kube::core::response::StatusDetails| {
        details.causes.iter().all(|cause| cause.field.is_empty())
    };
    status.code == 422 && status.details.as_ref().is_none_or(of_no_field)
}

fn retry_after(status: &kube::core::Status) -> Option<Duration> {
    let seconds = status.details.as_ref()?.retry_after_seconds;
    (seconds > 0).then(|| Duration::from_secs(u64::from(seconds.min(60))))
}

impl Refusal {
    /// Condition reason and the server's message, if the user must see the refusal.
    pub fn for_user(self) -> Option<(Reason, String)> {
        match self {
            Self::Quota(message) => Some((Reason::QuotaExceeded, message)),
            Self::Template(message) => Some((Reason::TemplateRejected, message)),
            Self::Exists | Self::Conflict | Self::NotFound | Self::Busy(_) => None,
        }
    }

    /// The metric's label.
    pub fn label(&self) -> &'static str {
        match self {
            Self::Quota(_) | Self::Template(_) => "refused",
            Self::Exists | Self::Conflict => "conflict",
            Self::NotFound => "gone",
            Self::Busy(_) => "busy",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn answer(code: u16, message: &str) -> Refusal {
        let mut status = Status::failure(message, "");
        status.code = code;
        classify(&Error::Api(Box::new(status)))
    }

    #[test]
    fn quota_template_and_server_errors_are_distinguished() {
        let quota = r#"pods "a-1-0" is forbidden: exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5"#;
        assert!(matches!(answer(403, quota), Refusal::Quota(words) if words == quota));
        assert!(matches!(
            answer(403, "pods \"a\" is forbidden: status unknown for quota: q"),
            Refusal::Quota(_)
        ));
        for (code, message) in [
            (403, "pods \"a\" is forbidden: failed quota: q: must specify requests.cpu for: train"),
            (
                403,
                "pods \"a\" is forbidden: error looking up service account team/x: serviceaccount \"x\" not found",
            ),
            (403, "pods \"a\" is forbidden: violates PodSecurity \"restricted:latest\": hostPath volumes"),
            (403, "pods \"a\" is forbidden: no PriorityClass with name x was found"),
            (422, "Pod \"a\" is invalid: spec.containers[0].image: Required value"),
            (400, "unknown field"),
            (413, "too large"),
        ] {
            assert!(
                matches!(answer(code, message), Refusal::Template(words) if words == message),
                "{code} {message}"
            );
        }
        let contended = "Operation cannot be fulfilled on resourcequotas \"q\": the object has been modified";
        assert_eq!(answer(409, contended), Refusal::Conflict);
        let mut exists = Status::failure("pods \"a\" already exists", "AlreadyExists");
        exists.code = 409;
        assert_eq!(classify(&Error::Api(Box::new(exists))), Refusal::Exists);
        let young = "pods \"a\" is forbidden: cannot set blockOwnerDeletion in this case because cannot find RESTMapping for \
                     APIVersion andreas.dev/v1alpha1 Kind TrainingJob";
        assert_eq!(answer(403, young), Refusal::Busy(Some(Duration::from_secs(1))));
        for code in [401, 408, 429, 500, 503, 504] {
            assert_eq!(answer(code, "later"), Refusal::Busy(None), "{code}");
        }
    }

    #[test]
    fn retry_after_is_respected() {
        let mut status = Status::failure("too many requests", "TooManyRequests");
        status.code = 429;
        status.details = serde_json::from_value(serde_json::json!({ "retryAfterSeconds": 3 })).ok();
        assert_eq!(classify(&Error::Api(Box::new(status))), Refusal::Busy(Some(Duration::from_secs(3))));
    }
}
