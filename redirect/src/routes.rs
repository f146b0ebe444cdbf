// SPDX-License-Identifier: Apache-2.0
//! Routing of a plan ↔ the kernel: the rule for marked replies and the route it leads to, for the network namespace
//! that the calling thread is in. Blocking; each family on its own, so that one never stops the other.

use std::io;

use netlink_packet_core::ErrorMessage;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use rtnetlink::{Handle, IpVersion, RouteMessageBuilder};

use crate::plan::Routing;
use crate::rules::Family;

#[derive(Debug, thiserror::Error)]
pub enum RouteError {
    #[error("{what} ({family}): {cause}")]
    Refused {
        what: &'static str,
        family: Family,
        cause: rtnetlink::Error,
    },
    #[error("routing: {0}")]
    Socket(io::Error),
}

/// Makes every rule and route hold. A family that the kernel or the namespace lacks is left out.
pub fn apply(routing: &[Routing]) -> Result<Changed, RouteError> {
    converse(async |handle| {
        let mut changed = Changed::No;
        for routing in routing {
            match apply_family(&handle, *routing).await {
                Ok(Changed::Yes) => changed = Changed::Yes,
                Ok(Changed::No) => {}
                Err(error) if routing.family == Family::V6 && error.is_absent_family() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(changed)
    })
}

/// Removes the rules and the routes, as far as they exist.
pub fn remove(routing: &[Routing]) -> Result<(), RouteError> {
    converse(async |handle| {
        for routing in routing {
            match remove_family(&handle, *routing).await {
                Err(error) if routing.family == Family::V6 && error.is_absent_family() => {}
                other => other?,
            }
        }
        Ok(())
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Changed {
    Yes,
    No,
}

impl RouteError {
    /// IPv6 is compiled out or switched off (also on the loopback alone).
    fn is_absent_family(&self) -> bool {
        let Self::Refused {
            cause:
                rtnetlink::Error::NetlinkError(ErrorMessage {
                    code: Some(code), ..
                }),
            ..
        } = self
        else {
            return false;
        };
        matches!(
            -code.get(),
            libc::EAFNOSUPPORT | libc::EOPNOTSUPP | libc::EACCES | libc::ENODEV
        )
    }
}

async fn apply_family(handle: &Handle, routing: Routing) -> Result<Changed, RouteError> {
    let mut changed = Changed::No;
    // The route first: a rule that leads to an empty table would only fall through, but why risk the moment.
    if find_routes(handle, routing).await?.is_empty() {
        let route = local_route(routing, loopback_index(handle).await?);
        handle
            .route()
            .add(route)
            .replace()
            .execute()
            .await
            .map_err(refused("adding the local route", routing.family))?;
        changed = Changed::Yes;
    }
    if find_rules(handle, routing).await?.is_empty() {
        // Not as a rule that must be new: to the kernel, one with further conditions would be the same.
        let mut request = handle.rule().add().replace();
        *request.message_mut() = rule(routing);
        request.execute().await.map_err(refused(
            "adding the rule for marked replies",
            routing.family,
        ))?;
        changed = Changed::Yes;
    }
    Ok(changed)
}

async fn remove_family(handle: &Handle, routing: Routing) -> Result<(), RouteError> {
    for rule in find_rules(handle, routing).await? {
        handle
            .rule()
            .del(rule)
            .execute()
            .await
            .map_err(refused("removing the rule", routing.family))?;
    }
    for route in find_routes(handle, routing).await? {
        handle
            .route()
            .del(route)
            .execute()
            .await
            .map_err(refused("removing the local route", routing.family))?;
    }
    Ok(())
}

async fn find_rules(handle: &Handle, routing: Routing) -> Result<Vec<RuleMessage>, RouteError> {
    let mut found = Vec::new();
    let version = match routing.family {
        Family::V4 => IpVersion::V4,
        Family::V6 => IpVersion::V6,
    };
    let mut rules = handle.rule().get(version).execute();
    while let Some(rule) = next(&mut rules)
        .await
        .map_err(refused("reading rules", routing.family))?
    {
        let has = |wanted: &RuleAttribute| rule.attributes.contains(wanted);
        if has(&RuleAttribute::Priority(routing.priority))
            && has(&RuleAttribute::FwMark(routing.mark))
            && has(&RuleAttribute::FwMask(routing.mask))
            && rule_table(&rule) == routing.table
            && has_no_other_condition(&rule)
        {
            found.push(rule);
        }
    }
    Ok(found)
}

/// A rule for some of the marked packets is somebody else's, and does not do for all of them.
fn has_no_other_condition(rule: &RuleMessage) -> bool {
    let header = &rule.header;
    let harmless = |attribute: &RuleAttribute| match attribute {
        RuleAttribute::Priority(_)
        | RuleAttribute::FwMark(_)
        | RuleAttribute::FwMask(_)
        | RuleAttribute::Table(_)
        | RuleAttribute::Protocol(_)
        | RuleAttribute::SuppressPrefixLen(u32::MAX)
        | RuleAttribute::SuppressIfGroup(u32::MAX) => true,
        // Attributes that are not known to the library: what they say is in the header or said by none of these.
        RuleAttribute::Other(_) => true,
        _ => false,
    };
    header.action == RuleAction::ToTable
        && !header.flags.contains(RuleFlags::Invert)
        && (header.src_len, header.dst_len, header.tos) == (0, 0, 0)
        && rule.attributes.iter().all(harmless)
}

async fn find_routes(handle: &Handle, routing: Routing) -> Result<Vec<RouteMessage>, RouteError> {
    let mut filter = RouteMessage::default();
    filter.header.address_family = address_family(routing.family);
    let mut found = Vec::new();
    let mut routes = handle.route().get(filter).execute();
    while let Some(route) = next(&mut routes)
        .await
        .map_err(refused("reading routes", routing.family))?
    {
        if route_table(&route) == routing.table
            && route.header.kind == RouteType::Local
            && route.header.destination_prefix_length == 0
        {
            found.push(route);
        }
    }
    Ok(found)
}

fn rule(routing: Routing) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = address_family(routing.family);
    message.header.action = RuleAction::ToTable;
    message.attributes = vec![
        RuleAttribute::Priority(routing.priority),
        RuleAttribute::FwMark(routing.mark),
        RuleAttribute::FwMask(routing.mask),
        RuleAttribute::Table(routing.table),
    ];
    message
}

fn local_route(routing: Routing, loopback: u32) -> RouteMessage {
    let mut message = match routing.family {
        Family::V4 => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
            .output_interface(loopback)
            .build(),
        Family::V6 => RouteMessageBuilder::<std::net::Ipv6Addr>::new()
            .output_interface(loopback)
            .build(),
    };
    message.header.kind = RouteType::Local;
    message.header.scope = RouteScope::Host;
    message.header.table = 0;
    message
        .attributes
        .retain(|attribute| !matches!(attribute, RouteAttribute::Table(_)));
    message
        .attributes
        .push(RouteAttribute::Table(routing.table));
    message
}

fn rule_table(rule: &RuleMessage) -> u32 {
    let named = rule
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RuleAttribute::Table(table) => Some(*table),
            _ => None,
        });
    named.unwrap_or_else(|| rule.header.table.into())
}

fn route_table(route: &RouteMessage) -> u32 {
    let named = route
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            RouteAttribute::Table(table) => Some(*table),
            _ => None,
        });
    named.unwrap_or_else(|| route.header.table.into())
}

async fn loopback_index(handle: &Handle) -> Result<u32, RouteError> {
    let mut links = handle.link().get().match_name("lo".to_owned()).execute();
    let link = next(&mut links)
        .await
        .map_err(refused("finding the loopback interface", Family::V4))?;
    link.map(|link| link.header.index).ok_or_else(|| {
        RouteError::Socket(io::Error::new(
            io::ErrorKind::NotFound,
            "no loopback interface",
        ))
    })
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

fn refused(what: &'static str, family: Family) -> impl Fn(rtnetlink::Error) -> RouteError {
    move |cause| RouteError::Refused {
        what,
        family,
        cause,
    }
}

async fn next<T>(
    stream: &mut (impl futures_util::TryStream<Ok = T, Error = rtnetlink::Error> + Unpin),
) -> Result<Option<T>, rtnetlink::Error> {
    futures_util::TryStreamExt::try_next(stream).await
}

/// Runs a conversation on a runtime of its own: sockets belong to the namespace of the thread that opens them.
fn converse<T>(talk: impl AsyncFnOnce(Handle) -> Result<T, RouteError>) -> Result<T, RouteError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .map_err(RouteError::Socket)?;
    runtime.block_on(async {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(RouteError::Socket)?;
        let connection = tokio::spawn(connection);
        let result = talk(handle).await;
        connection.abort();
        result
    })
}
