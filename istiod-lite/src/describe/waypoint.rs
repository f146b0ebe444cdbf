// SPDX-License-Identifier: Apache-2.0
//! What a waypoint is told of a service, as people read it.

mod traffic;

use proto::waypoint as wire;
use serde_json::Value;

use super::{
    Fields,
    policy::{policies, token_rules},
    telemetry::telemetry,
};

pub(super) fn service(service: &wire::Service) -> Value {
    let mut out = Fields::default();
    out.add("namespace", &service.namespace);
    out.add("hostname", &service.hostname);
    out.add("ports", service.ports.iter().map(port).collect::<Vec<_>>());
    out.add("policies", policies(&service.policies));
    out.add("tokenRules", token_rules(&service.token_rules));
    out.add("telemetry", service.telemetry.as_ref().map(telemetry));
    out.into()
}

fn port(port: &wire::Port) -> Value {
    let mut out = Fields::default();
    out.add("number", port.number);
    out.named("protocol", port.protocol().as_str_name(), "DETECT");
    out.add("tables", port.tables.iter().map(table).collect::<Vec<_>>());
    out.add(
        "policy",
        port.traffic_policy.as_deref().map(traffic::policy),
    );
    out.into()
}

fn table(table: &wire::RouteTable) -> Value {
    let mut out = Fields::default();
    let clients = match table.client_namespace.as_str() {
        "" => "*",
        namespace => namespace,
    };
    out.add("clientsOf", clients);
    out.add("inOrder", table.in_order);
    out.add(
        "http",
        table.http.iter().map(http_route).collect::<Vec<_>>(),
    );
    out.add("tls", table.tls.iter().map(tls_route).collect::<Vec<_>>());
    out.add("tcp", table.tcp.iter().map(tcp_route).collect::<Vec<_>>());
    out.into()
}

fn http_route(route: &wire::HttpRoute) -> Value {
    let mut out = Fields::default();
    out.add(
        "route",
        format!("{} {}/{}", route.kind, route.namespace, route.name),
    );
    out.add(
        "created",
        Some(route.created).filter(|created| *created != 0),
    );
    out.add("rateLimit", route.rate_limit.as_ref().map(rate_limit));
    out.add("rules", route.rules.iter().map(rule).collect::<Vec<_>>());
    out.into()
}

fn rate_limit(limit: &wire::RateLimit) -> String {
    use wire::rate_limit::By;
    let by = match &limit.by {
        None => String::new(),
        Some(By::Identity(())) => " of each client".to_owned(),
        Some(By::Header(name)) => format!(" of each {name}"),
    };
    let per = limit.per.map(seconds).unwrap_or_default();
    let burst = match limit.burst {
        0 => String::new(),
        burst => format!(", {burst} at once"),
    };
    format!("{} in {per}{by}{burst}", limit.requests)
}

fn rule(rule: &wire::HttpRule) -> Value {
    let mut out = Fields::default();
    out.add("name", &rule.name);
    out.add(
        "matches",
        rule.matches.iter().map(matching).collect::<Vec<_>>(),
    );
    out.add(
        "filters",
        rule.filters.iter().map(filter).collect::<Vec<_>>(),
    );
    out.add(
        "backends",
        rule.backends.iter().map(backend).collect::<Vec<_>>(),
    );
    if let Some(fault) = &rule.fault {
        out.add("delay", fault.delay.as_ref().map(delay));
        out.add("abort", fault.abort.as_ref().map(abort));
    }
    if let Some(response) = &rule.direct_response {
        let body = String::from_utf8_lossy(&response.body);
        out.add("answer", format!("{} {body:?}", response.status));
    }
    if let Some(timeouts) = &rule.timeouts {
        out.add("timeout", timeouts.request.map(seconds));
        out.add("timeoutOfBackend", timeouts.backend_request.map(seconds));
    }
    if let Some(retry) = &rule.retry {
        let backoff = retry
            .backoff
            .map(|time| format!(" after {}", seconds(time)));
        let backoff = backoff.unwrap_or_default();
        out.add(
            "retry",
            format!("{} times on {:?}{backoff}", retry.attempts, retry.codes),
        );
    }
    if let Some(session) = &rule.session_persistence {
        let mut said = format!("{} {}", session.carrier().as_str_name(), session.name);
        for (what, time) in [
            ("in all", session.absolute_timeout),
            ("idle", session.idle_timeout),
        ] {
            if let Some(time) = time {
                said.push_str(&format!(", {} {what}", seconds(time)));
            }
        }
        out.add("session", said);
    }
    out.add("invalid", &rule.invalid);
    out.into()
}

fn delay(delay: &wire::fault::Delay) -> String {
    let time = delay.duration.map(seconds).unwrap_or_default();
    format!("{} for {time}", share(delay.share))
}

fn abort(abort: &wire::fault::Abort) -> String {
    use wire::fault::abort::Status;
    let status = match abort.status {
        Some(Status::Http(code)) => code.to_string(),
        Some(Status::Grpc(code)) => format!("gRPC's {code}"),
        None => "?".to_owned(),
    };
    format!("{} with {status}", share(abort.share))
}

fn share(share: Option<wire::Share>) -> String {
    let share = share.unwrap_or_default();
    format!("{}/{}", share.numerator, share.denominator)
}

fn matching(one: &wire::HttpMatch) -> String {
    use wire::path_match::Kind;
    let mut parts = Vec::new();
    if !one.method.is_empty() {
        parts.push(one.method.clone());
    }
    match one.path.as_ref().and_then(|path| path.kind.as_ref()) {
        Some(Kind::Exact(path)) => parts.push(format!("={path}")),
        Some(Kind::Prefix(path)) => parts.push(format!("{path}…")),
        Some(Kind::Regex(path)) => parts.push(format!("~{path}")),
        Some(Kind::Start(path)) => parts.push(format!("{path}*")),
        None => {}
    }
    if let Some(grpc) = &one.grpc {
        let how = if grpc.regex { "~" } else { "=" };
        parts.push(format!("grpc{how}{}/{}", grpc.service, grpc.method));
    }
    for (what, values) in [("header", &one.headers), ("query", &one.query)] {
        parts.extend(
            values
                .iter()
                .map(|value| format!("{what} {}", value_match(value))),
        );
    }
    parts.join(" & ")
}

fn value_match(one: &wire::ValueMatch) -> String {
    use wire::value_match::Value;
    let not = if one.inverted { "!" } else { "" };
    match &one.value {
        Some(Value::Exact(value)) => format!("{}{not}={value}", one.name),
        Some(Value::Regex(value)) => format!("{}{not}~{value}", one.name),
        None => one.name.clone(),
    }
}

fn filter(filter: &wire::HttpFilter) -> String {
    use wire::http_filter::Kind;
    match &filter.kind {
        Some(Kind::RequestHeaders(headers)) => format!("request headers: {}", modifier(headers)),
        Some(Kind::ResponseHeaders(headers)) => format!("response headers: {}", modifier(headers)),
        Some(Kind::Redirect(to)) => {
            let port = if to.port == 0 {
                String::new()
            } else {
                format!(":{}", to.port)
            };
            let path = path(to.path.as_ref());
            format!(
                "redirect {} {}://{}{port}{path}",
                to.status, to.scheme, to.hostname
            )
        }
        Some(Kind::Rewrite(to)) => format!("rewrite {}{}", to.hostname, path(to.path.as_ref())),
        Some(Kind::Mirror(mirror)) => {
            let to = mirror.destination.as_ref().map(destination);
            let to = to.unwrap_or_else(|| "nowhere".to_owned());
            format!("mirror {}/{} to {to}", mirror.numerator, mirror.denominator)
        }
        Some(Kind::Cors(cors)) => {
            let mut said = format!(
                "cors: origins {:?}, methods {:?}, headers {:?}, exposed {:?}, credentials {}, {} s",
                cors.allow_origins,
                cors.allow_methods,
                cors.allow_headers,
                cors.expose_headers,
                cors.allow_credentials,
                cors.max_age
            );
            if !cors.origin_patterns.is_empty() {
                said.push_str(&format!(", origins like {:?}", cors.origin_patterns));
            }
            if cors.forward_preflights {
                said.push_str(", other preflights go on");
            }
            said
        }
        Some(Kind::Unknown(name)) => format!("unknown: {name}"),
        None => "?".to_owned(),
    }
}

fn modifier(headers: &wire::HeaderModifier) -> String {
    let set = headers
        .set
        .iter()
        .map(|h| format!("{}={}", h.name, h.value));
    let add = headers
        .add
        .iter()
        .map(|h| format!("{}+={}", h.name, h.value));
    let remove = headers.remove.iter().map(|name| format!("-{name}"));
    set.chain(add).chain(remove).collect::<Vec<_>>().join(", ")
}

fn path(path: Option<&wire::PathRewrite>) -> String {
    use wire::path_rewrite::Kind;
    match path.and_then(|path| path.kind.as_ref()) {
        Some(Kind::Full(path)) => format!(" path {path}"),
        Some(Kind::Prefix(path)) => format!(" prefix {path:?}"),
        Some(Kind::Regex(change)) => {
            format!(" ~{} by {:?}", change.pattern, change.substitution)
        }
        None => String::new(),
    }
}

fn backend(backend: &wire::HttpBackend) -> Value {
    use wire::http_backend::Target;
    let target = match &backend.target {
        Some(Target::Destination(to)) => destination(to),
        Some(Target::Invalid(why)) => format!("invalid: {why}"),
        None => "?".to_owned(),
    };
    let share = format!("{} to {target}", backend.weight);
    if backend.filters.is_empty() {
        return share.into();
    }
    let mut out = Fields::default();
    out.add("share", share);
    out.add(
        "filters",
        backend.filters.iter().map(filter).collect::<Vec<_>>(),
    );
    out.into()
}

fn tls_route(route: &wire::TlsRoute) -> Value {
    let mut out = Fields::default();
    out.add(
        "route",
        format!("TLSRoute {}/{}", route.namespace, route.name),
    );
    out.add(
        "created",
        Some(route.created).filter(|created| *created != 0),
    );
    out.add("hostnames", &route.hostnames);
    out.add(
        "backends",
        route.backends.iter().map(connections).collect::<Vec<_>>(),
    );
    out.into()
}

fn tcp_route(route: &wire::TcpRoute) -> Value {
    let mut out = Fields::default();
    out.add(
        "route",
        format!("TCPRoute {}/{}", route.namespace, route.name),
    );
    out.add(
        "created",
        Some(route.created).filter(|created| *created != 0),
    );
    out.add(
        "backends",
        route.backends.iter().map(connections).collect::<Vec<_>>(),
    );
    out.into()
}

fn connections(backend: &wire::TcpBackend) -> String {
    use wire::tcp_backend::Target;
    let target = match &backend.target {
        Some(Target::Destination(to)) => destination(to),
        Some(Target::Invalid(why)) => format!("invalid: {why}"),
        None => "?".to_owned(),
    };
    format!("{} to {target}", backend.weight)
}

fn destination(to: &wire::Destination) -> String {
    let speaks = to.protocol().as_str_name();
    let policy = to.traffic_policy.as_deref().map(traffic::policy);
    let policy = policy.map_or_else(String::new, |policy| format!(" ({policy})"));
    format!(
        "{}/{}:{} {speaks}{policy}",
        to.namespace, to.hostname, to.port
    )
}

pub(super) fn seconds(time: prost_types::Duration) -> String {
    format!("{}.{:03}s", time.seconds, time.nanos / 1_000_000)
}
