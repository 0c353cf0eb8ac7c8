package nft

import (
	"slices"

	"golang.org/x/sys/unix"

	"sluice/internal/kernel/netlink"
)

// text and number read attributes, from the outside in.
func text(b []byte, kinds ...uint16) string { return netlink.Text(netlink.Attribute(b, kinds...)) }

func number(b []byte, kinds ...uint16) uint32 {
	return netlink.Number[uint32](netlink.Attribute(b, kinds...))
}

// comment finds the comment in userdata.
func comment(userdata []byte, kind byte) string {
	for len(userdata) >= 2 {
		n := int(userdata[1])
		if 2+n > len(userdata) {
			return ""
		}
		if userdata[0] == kind {
			return netlink.Text(userdata[2 : 2+n])
		}
		userdata = userdata[2+n:]
	}
	return ""
}

// decodeElement decodes one element of a listing.
func decodeElement(b []byte) Element {
	var e Element
	for kind, v := range netlink.Attributes(b) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key = string(netlink.Attribute(v, unix.NFTA_DATA_VALUE))
		case setElemKeyEnd:
			e.KeyEnd = string(netlink.Attribute(v, unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_DATA:
			e.Data = string(netlink.Attribute(v, unix.NFTA_DATA_VALUE))
			e.Verdict = decodeVerdict(netlink.Attribute(v, unix.NFTA_DATA_VERDICT))
		}
	}
	return e
}

// decodeVerdict decodes a verdict; one that we never write stays the zero value.
func decodeVerdict(b []byte) Verdict {
	if len(b) == 0 {
		return Verdict{}
	}
	code := slices.Index(verdictCodes[Drop:], number(b, unix.NFTA_VERDICT_CODE))
	if code < 0 {
		return Verdict{}
	}
	return Verdict{Code: Drop + Code(code), Chain: text(b, unix.NFTA_VERDICT_CHAIN)}
}
