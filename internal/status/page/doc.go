// Package page serves the web page that shows the daemon's status API in a browser.
// It consists of a few embedded files without a framework, and requests nothing but
// the API at its own origin.
//
// The browser has other sites open, and whoever may write objects chooses their
// names. So a content security policy allows scripts and styles from our files only,
// and the scripts add text to the document as text nodes only.
//
//	page.js     which view is shown, when the daemon is asked, what is stale
//	views.js    what each view requests, and how it shows the responses
//	flow.js     the drawing of how a packet flows
//	traffic.js  rates, computed from counters
//	dom.js      creates elements, and updates the document
//	format.js   numbers and times as text
package page
