// Package page is the page that people look at in a browser: what the daemon's
// read-only API tells, drawn. It is a few embedded files without a framework,
// and asks for nothing but the API at its own origin.
//
// A browser shows it to people who have other pages open, and object names come
// from whoever may write objects. So scripts and styles come from files only
// and text reaches the document as text.
//
//	page.js     which view is shown, when the daemon is asked, what is stale
//	views.js    what each view asks for, and what it shows of that
//	flow.js     the drawing of how a packet flows
//	traffic.js  rates, from counters that were seen
//	dom.js      elements, and bringing the document to what is wanted
//	format.js   numbers and times, for people
package page
