// SPDX-License-Identifier: Apache-2.0
//! The L7 proxy of the mesh, on the same overlay as the nodes' proxies: services that ask for one send their traffic
//! through it. What decides is pure: [`proto::waypoint`] in, an answer out.
