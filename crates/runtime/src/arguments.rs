//! Values of flags that become parts of paths of requests: nothing but a name may pass.

/// Maximum name of a namespace.
const MAX_LABEL: usize = 63;
/// Maximum name of any object.
const MAX_NAME: usize = 253;

/// Name of a namespace.
///
/// # Errors
/// When it is none.
pub fn namespace(text: &str) -> Result<String, String> {
    let name = object(text)?;
    if name.len() > MAX_LABEL || name.contains('.') {
        return Err(format!("{text:?} is no name of a namespace: at most {MAX_LABEL} of a-z, 0-9 and -"));
    }
    Ok(name)
}

/// Name of an object: RFC 1123, section 2.1, as the API server checks it.
///
/// # Errors
/// When it is none.
pub fn object(text: &str) -> Result<String, String> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let good = |part: &str| {
        !part.is_empty() && part.chars().all(inside) && !part.starts_with('-') && !part.ends_with('-')
    };
    if text.len() > MAX_NAME || !text.split('.').all(good) {
        return Err(format!("{text:?} is no name: a-z, 0-9, - and . alone, at most {MAX_NAME}"));
    }
    Ok(text.to_owned())
}

/// A text that is not empty.
///
/// # Errors
/// When it is empty.
pub fn non_empty(text: &str) -> Result<String, String> {
    if text.trim().is_empty() { Err("is empty".to_owned()) } else { Ok(text.to_owned()) }
}

/// Base address of a server with certificates: `https://HOST[:PORT]`.
///
/// # Errors
/// When it is none.
pub fn https(text: &str) -> Result<String, String> {
    let address = text.parse::<http::Uri>().ok();
    let host = address.as_ref().filter(|uri| uri.scheme_str() == Some("https")).and_then(http::Uri::host);
    match host {
        Some(host) if !host.is_empty() => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is no address such as https://HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_addresses_are_nothing_else() {
        assert!(namespace("team-a").is_ok() && object("a.b").is_ok() && non_empty("x").is_ok());
        for wrong in ["", "Bad NS", "../x", "a/b", "a#b", "-a", "a,b"] {
            assert!(namespace(wrong).is_err() && object(wrong).is_err(), "{wrong}");
        }
        assert!(https("https://andreas-operator.andreas-system.svc:8443").is_ok());
        for wrong in ["", "foo", "http://x", "https://", "https:///x"] {
            assert!(https(wrong).is_err(), "{wrong}");
        }
    }
}
