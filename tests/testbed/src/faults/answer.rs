//! Answers that the proxy makes itself, and how a read is put so that the answer is that of an older replica. Pure.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

use super::request::{ApiRequest, Verb};

/// A Kubernetes Status with this code.
pub(super) fn status(code: u16, retry_after: Option<u64>, asked: &ApiRequest) -> Response<Bytes> {
    let (reason, why) = match code {
        404 => ("NotFound", "not found"),
        409 => ("Conflict", "the object has been modified; please apply your changes to the latest version"),
        410 => ("Expired", "the resource version is too old"),
        429 => ("TooManyRequests", "too many requests, please try again later"),
        500 => ("InternalError", "Internal error occurred: failed calling webhook"),
        503 => ("ServiceUnavailable", "the server is currently unable to handle the request"),
        504 => ("Timeout", "request did not complete within the allotted timeout"),
        _ => ("", "made by the fault proxy"),
    };
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("{}: {why}", asked.describe()), "reason": reason, "code": code,
    });
    let mut response = json_response(code, &body);
    if let Some(seconds) = retry_after {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn json_response(code: u16, body: &Value) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(body.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// How to ask for the same as of an older version: always a list, because only lists take an exact version. `None` where
/// that cannot be asked: subresources, paths that are no resources, further pages (which keep their list's version).
pub(super) fn older_uri(asked: &ApiRequest, uri: &str, version: u64) -> Option<String> {
    if asked.continues || asked.resource.contains('/') {
        return None;
    }
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    let kept = query.split('&').filter(|pair| {
        !pair.is_empty() && !pair.starts_with("resourceVersion") && !pair.starts_with("continue=")
    });
    let mut pairs: Vec<String> = kept.map(str::to_owned).collect();
    pairs.push(format!("resourceVersion={version}"));
    pairs.push("resourceVersionMatch=Exact".to_owned());
    let path = match asked.verb {
        Verb::List => path,
        Verb::Get => {
            pairs.push(format!("fieldSelector=metadata.name%3D{}", asked.name));
            path.strip_suffix(&asked.name)?.trim_end_matches('/')
        }
        _ => return None,
    };
    Some(format!("{path}?{}", pairs.join("&")))
}

/// The answer to a read of one object, from the list that [`older_uri`] asked for.
pub(super) fn only_item(asked: &ApiRequest, list: &[u8]) -> Response<Bytes> {
    let list: Value = serde_json::from_slice(list).unwrap_or(Value::Null);
    let Some(item) = list["items"].get(0) else { return status(404, None, asked) };
    let mut item = item.clone();
    // Items of built-in lists do not say what they are.
    let kind = list["kind"].as_str().unwrap_or_default();
    item["kind"] = json!(kind.strip_suffix("List").unwrap_or(kind));
    item["apiVersion"] = list["apiVersion"].clone();
    json_response(200, &item)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn asked(uri: &str) -> ApiRequest {
        ApiRequest::parse("operator", "", &Method::GET, uri, b"")
    }

    #[test]
    fn reads_are_asked_for_at_an_exact_version() {
        let cases = [
            (
                "/api/v1/pods?limit=500&resourceVersion=0",
                Some("/api/v1/pods?limit=500&resourceVersion=7&resourceVersionMatch=Exact"),
            ),
            (
                "/api/v1/namespaces/a/pods/p",
                Some(
                    "/api/v1/namespaces/a/pods?resourceVersion=7&resourceVersionMatch=Exact&fieldSelector=metadata.name%3Dp",
                ),
            ),
            ("/api/v1/pods?limit=500&continue=abc", None),
            ("/api/v1/namespaces/a/pods/p/log", None),
            ("/readyz", None),
        ];
        for (uri, older) in cases {
            assert_eq!(older_uri(&asked(uri), uri, 7).as_deref(), older, "{uri}");
        }
    }

    #[test]
    fn one_object_is_taken_out_of_its_list() {
        let asked = asked("/api/v1/namespaces/a/pods/p");
        let list = br#"{"kind":"PodList","apiVersion":"v1","items":[{"metadata":{"name":"p"}}]}"#;
        let item: Value = serde_json::from_slice(only_item(&asked, list).body()).unwrap();
        assert_eq!(item, json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p"}}));
        assert_eq!(only_item(&asked, br#"{"items":[]}"#).status(), 404);
    }
}
