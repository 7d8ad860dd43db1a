//! Which proxy leads to an API server, by the environment: as Go's `net/http` and so kubectl reads it.

use std::net::IpAddr;

use http::Uri;

/// The proxy that `HTTPS_PROXY` or `HTTP_PROXY` names for a server, unless `NO_PROXY` excepts it. `env` looks a variable up; names in
/// small letters count where those in capitals are not set. Loopback addresses are never reached by a proxy.
///
/// # Errors
/// The variable whose value is no address of a proxy.
pub fn of_environment(server: &Uri, env: impl Fn(&str) -> Option<String>) -> Result<Option<Uri>, String> {
    let variable = if server.scheme_str() == Some("http") { "HTTP_PROXY" } else { "HTTPS_PROXY" };
    let value = |name: &str| {
        let set =
            |name: &str| env(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());
        set(name).or_else(|| set(&name.to_ascii_lowercase()))
    };
    let Some(proxy) = value(variable) else { return Ok(None) };
    if is_excepted(server, &value("NO_PROXY").unwrap_or_default()) {
        return Ok(None);
    }
    address(&proxy).map(Some).map_err(|problem| format!("{variable}: {problem}"))
}

/// The address of a proxy: `http`, where it names no scheme, `https` or `socks5`.
///
/// # Errors
/// It is none. The value is not repeated, it may hold a password.
pub fn address(text: &str) -> Result<Uri, String> {
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    // Names are resolved by the proxy in either case.
    let whole = whole.replacen("socks5h://", "socks5://", 1);
    let proxy: Uri = whole.parse().map_err(|_| "is no address of a proxy".to_owned())?;
    match proxy.scheme_str() {
        Some("http" | "https" | "socks5") if proxy.host().is_some() => Ok(proxy),
        _ => Err("is no address of a proxy by http, https or socks5".to_owned()),
    }
}

/// Whether a server is reached without a proxy.
fn is_excepted(server: &Uri, no_proxy: &str) -> bool {
    let host = server.host().unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase();
    let port = server.port_u16().unwrap_or(if server.scheme_str() == Some("http") { 80 } else { 443 });
    let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    no_proxy.split(',').map(str::trim).filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        if entry == "*" {
            return true;
        }
        if let Some((net, length)) = entry.split_once('/') {
            return ip.zip(net.parse().ok()).is_some_and(|(ip, net)| is_within(ip, net, length));
        }
        let (name, of_port) = match entry.rsplit_once(':') {
            // More colons are those of an IPv6 address.
            Some((name, of_port)) if !name.contains(':') || name.ends_with(']') => (name, Some(of_port)),
            _ => (entry.as_str(), None),
        };
        if of_port.is_some_and(|of_port| of_port.parse() != Ok(port)) {
            return false;
        }
        if let Ok(address) = name.trim_matches(['[', ']']).parse::<IpAddr>() {
            return ip == Some(address.to_canonical());
        }
        // `example.org` stands for itself and what is below it, `.example.org` and `*.example.org` for that alone.
        let name = name.strip_prefix('*').unwrap_or(name);
        let below = |domain: &str| host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        match name.strip_prefix('.') {
            Some(domain) => below(domain),
            None => !name.is_empty() && (host == name || below(name)),
        }
    })
}

fn is_within(ip: IpAddr, net: IpAddr, length: &str) -> bool {
    let bits = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let ((ip, of_ip), (net, of_net)) = (bits(ip), bits(net));
    let length = length.parse::<u32>().ok().filter(|length| *length <= of_net && of_ip == of_net);
    // A shift by all bits is none.
    length.is_some_and(|length| (ip ^ net).checked_shr(128 - length).unwrap_or(0) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_no_proxy_names_are_reached_without_one() {
        let proxied = |server: &str, no_proxy: &str| {
            let env = |name: &str| match name {
                "https_proxy" => Some("proxy.corp:3128".to_owned()),
                "NO_PROXY" => Some(no_proxy.to_owned()),
                _ => None,
            };
            of_environment(&server.parse().unwrap(), env).unwrap().map(|proxy| proxy.to_string())
        };
        for (server, no_proxy) in [
            ("https://10.1.2.3:6443", "10.1.2.3"),
            ("https://10.1.2.3:6443", "a, 10.0.0.0/8 ,,"),
            ("https://10.1.2.3:6443", "10.1.2.3:6443"),
            ("https://10.1.2.3:6443", "0.0.0.0/0"),
            ("https://[fd00::1]:6443", "fd00::/8"),
            ("https://[fd00::1]:6443", "[fd00::1]:6443"),
            ("https://api.Corp.Example", "corp.example"),
            ("https://api.corp.example", ".corp.example:443"),
            ("https://api.corp.example", "*.example"),
            ("https://api.corp.example", "*"),
            ("https://localhost:6443", ""),
            ("https://127.0.0.1:6443", ""),
            ("https://[::1]:6443", ""),
        ] {
            assert_eq!(proxied(server, no_proxy), None, "{server} {no_proxy}");
        }
        for (server, no_proxy) in [
            ("https://10.1.2.3:6443", "10.1.2.4,11.0.0.0/8,10.1.2.3:443,fd00::/8,10.1.2.3/33,.svc"),
            ("https://corp.example", ".corp.example,orp.example,example.org"),
            ("https://api.corp.example", "api.corp.example:6443,:443"),
        ] {
            assert_eq!(proxied(server, no_proxy).as_deref(), Some("http://proxy.corp:3128/"), "{server}");
        }
    }

    #[test]
    fn a_proxy_has_a_scheme_that_there_is_and_its_password_is_not_said() {
        let of = |text: &str| address(text).map(|proxy| proxy.to_string());
        assert_eq!(of("socks5h://10.0.0.1:1080").unwrap(), "socks5://10.0.0.1:1080/");
        assert_eq!(of("https://u:p@proxy").unwrap(), "https://u:p@proxy/");
        for wrong in ["ftp://u:SECRET@proxy", "http://u:SECRET word@proxy", "http:///SECRET"] {
            assert!(!of(wrong).unwrap_err().contains("SECRET"), "{wrong}");
        }
        let server = "http://10.0.0.1".parse().unwrap();
        let env = |name: &str| (name == "HTTPS_PROXY").then(|| "proxy".to_owned());
        assert_eq!(of_environment(&server, env).unwrap(), None, "it is for https");
    }
}
