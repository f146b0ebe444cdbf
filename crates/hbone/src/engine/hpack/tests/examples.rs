// SPDX-License-Identifier: Apache-2.0
//! The examples of RFC 7541 Appendix C, and codes of its Appendix B.

use super::*;

type Text = (&'static str, &'static str);

/// Decodes the blocks in turn; after each, its fields and the dynamic table (newest first) have to be as given.
fn check(decoder: &mut Decoder, steps: &[(&str, &[Text], &[Text])]) {
    for (block, expected, table) in steps {
        assert_eq!(
            decode(decoder, &hex(block)),
            Ok(fields(expected)),
            "{block}"
        );
        assert_eq!(dynamic_table(decoder), fields(table), "{block}");
    }
}

const CUSTOM: Text = ("custom-key", "custom-value");
const AUTHORITY: Text = (":authority", "www.example.com");
const NO_CACHE: Text = ("cache-control", "no-cache");
const GET: Text = (":method", "GET");
const HTTP: Text = (":scheme", "http");
const HTTPS: Text = (":scheme", "https");
const ROOT: Text = (":path", "/");
const INDEX: Text = (":path", "/index.html");

#[test]
fn examples_of_single_fields_decode() {
    let header = ("custom-key", "custom-header");
    for (block, field, inserted) in [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            header,
            true,
        ),
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            (":path", "/sample/path"),
            false,
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            ("password", "secret"),
            false,
        ),
        ("82", GET, false),
    ] {
        let table: &[_] = if inserted { &[field] } else { &[] };
        check(
            &mut Decoder::new(DEFAULT_TABLE),
            &[(block, &[field], table)],
        );
    }
}

#[test]
fn examples_of_requests_decode_plain_and_with_huffman_code() {
    for blocks in [
        [
            "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "8286 84be 5808 6e6f 2d63 6163 6865",
            "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
        ],
        [
            "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
            "8286 84be 5886 a8eb 1064 9cbf",
            "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
        ],
    ] {
        check(
            &mut Decoder::new(DEFAULT_TABLE),
            &[
                (blocks[0], &[GET, HTTP, ROOT, AUTHORITY], &[AUTHORITY]),
                (
                    blocks[1],
                    &[GET, HTTP, ROOT, AUTHORITY, NO_CACHE],
                    &[NO_CACHE, AUTHORITY],
                ),
                (
                    blocks[2],
                    &[GET, HTTPS, INDEX, AUTHORITY, CUSTOM],
                    &[CUSTOM, NO_CACHE, AUTHORITY],
                ),
            ],
        );
    }
}

#[test]
fn examples_of_responses_decode_with_eviction_from_a_table_of_256() {
    let found = (":status", "302");
    let temporary = (":status", "307");
    let ok = (":status", "200");
    let private = ("cache-control", "private");
    let date = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
    let later = ("date", "Mon, 21 Oct 2013 20:13:22 GMT");
    let location = ("location", "https://www.example.com");
    let gzip = ("content-encoding", "gzip");
    let cookie = (
        "set-cookie",
        "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
    );
    // The examples take the size of 256 for agreed; here the first block says so.
    for blocks in [
        [
            "3fe101 4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 \
             3a32 3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
            "4803 3330 37c1 c0bf",
            "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970 \
             7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61 \
             6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
        ],
        [
            "3fe101 4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d \
             29ad 1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
            "4883 640e ffc1 c0bf",
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 \
             e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        ],
    ] {
        let mut decoder = Decoder::new(256);
        decoder.settings_acknowledged();
        check(
            &mut decoder,
            &[
                (
                    blocks[0],
                    &[found, private, date, location],
                    &[location, date, private, found],
                ),
                (
                    blocks[1],
                    &[temporary, private, date, location],
                    &[temporary, location, date, private],
                ),
                (
                    blocks[2],
                    &[ok, private, later, location, gzip, cookie],
                    &[cookie, gzip, later],
                ),
            ],
        );
    }
}

#[test]
fn codes_are_those_published() {
    for (symbol, code, length) in [
        (0, 0x1ff8, 13),
        (1, 0x7f_ffd8, 23),
        (2, 0xfff_ffe2, 28),
        (9, 0xff_ffea, 24),
        (10, 0x3fff_fffc, 30),
        (13, 0x3fff_fffd, 30),
        (22, 0x3fff_fffe, 30),
        (48, 0x0, 5),
        (32, 0x14, 6),
        (92, 0x7_fff0, 19),
        (127, 0xfff_fffc, 28),
        (128, 0xf_ffe6, 20),
        (153, 0x1f_ffdc, 21),
        (129, 0x3f_ffd2, 22),
        (199, 0x1ff_ffec, 25),
        (192, 0x3ff_ffe0, 26),
        (203, 0x7ff_ffde, 27),
        (255, 0x3ff_ffee, 26),
        (256, 0x3fff_ffff, 30),
    ] {
        assert_eq!(model::codes()[symbol], (code, length), "{symbol}");
    }
}
